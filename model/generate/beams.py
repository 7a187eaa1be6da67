"""Beam search: the most likely sequence, where greedy decoding takes the most likely token at each
step."""

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from configs.registry import Count, check_value
from model.generate.decode import NOT_FINITE, DecodeStep, DecodingState, Processor, Rows

Steps = list[DecodeStep]


@torch.inference_mode()
def beam_search(
    model: nn.Module,
    prompts: Rows,
    sources: Rows | None = None,
    *,
    beams: int,
    length_penalty: float,
    max_new_tokens: int,
    stop: Sequence[int] = (),
    processor: Processor | None = None,
) -> Steps:
    """The finished sequence with the best score, for one prompt; a step continues `beams` rows."""
    if model.kind != "encoder_decoder":
        raise ValueError(f"beam search needs an encoder_decoder; this model is a {model.kind}")
    check_value("beams", beams, Count)
    check_value("length_penalty", length_penalty, float)
    state = DecodingState(model, prompts, sources, max_new_tokens)
    tokens = state.prompts_BT

    def score(logprob: float, length: int) -> float:
        """A higher penalty favors longer sequences (arxiv.org/abs/1609.08144)."""
        return logprob / length**length_penalty

    active: list[tuple[float, Steps]] = [(0.0, [])]  # each with its log-probability
    best = []
    best_score = -math.inf

    for length in range(1, max_new_tokens + 1):
        own_BV = state.next_logits(tokens).log_softmax(-1)
        logprobs_BV = processor(state.rows, length - 1, own_BV) if processor else own_BV
        sums_B1 = logprobs_BV.new_tensor([[logprob] for logprob, _ in active])
        totals = (logprobs_BV + sums_B1).flatten()

        # twice as many as beams, so that enough remain if each beam also ends
        top = totals.topk(min(2 * beams, len(totals))).indices
        chosen = logprobs_BV.flatten()[top].tolist()
        own = own_BV.flatten()[top].tolist()

        if any(map(math.isnan, chosen)):  # topk ranks NaN first
            raise FloatingPointError(NOT_FINITE)

        rows = []
        longer: list[tuple[float, Steps]] = []

        for rank, index in enumerate(top.tolist()):
            row, i = divmod(index, logprobs_BV.shape[-1])
            logprob = active[row][0] + chosen[rank]
            steps = [*active[row][1], DecodeStep([i], [own[rank]])]
            if i in stop or length == max_new_tokens:
                if rank < beams and score(logprob, length) > best_score:
                    best = steps
                    best_score = score(logprob, length)
            elif len(longer) < beams:
                rows.append(row)
                longer.append((logprob, steps))

        # at best, each further token has probability 1; the best length depends on the penalty
        bounds = [score(logprob, n) for logprob, _ in longer for n in (length + 1, max_new_tokens)]
        if max(bounds, default=-math.inf) <= best_score:
            return best

        tokens = branch(state, rows, [steps[-1].ids for _, steps in longer])
        active = longer
    return best


def branch(state: DecodingState, rows: list[int], ids: list) -> Tensor:
    """Continue these rows, some of which may repeat, each with an id. Returns the new tokens."""
    state.rows = [list(state.rows[row]) for row in rows]
    state.memory = state.memory[:1].expand(len(rows), -1, -1)
    state.caches.select_rows(state.prompts_BT.new_tensor(rows))
    state.append([i for [i] in ids])
    return state.prompts_BT.new_tensor(ids)
