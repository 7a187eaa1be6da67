"""Beam search: the most likely sequence, where greedy decoding takes the most likely token at each
step."""

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn

from configs.registry import Count, check_value
from model.generate.decode import NOT_FINITE, DecodeStep, DecodingState, Processor, Rows

Steps = list[DecodeStep]


class Beam(NamedTuple):
    """A sequence of tokens, which continues a row of the batch by one (the first one by none)."""

    row: int
    token: int
    logprob: float  # of all its tokens
    steps: Steps


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

    def score_at(length: int, beam: Beam) -> float:
        """A higher penalty favors longer sequences (arxiv.org/abs/1609.08144)."""
        return beam.logprob / length**length_penalty

    state = DecodingState(model, prompts, sources, max_new_tokens)
    tokens = state.prompts_BT
    active = [Beam(0, prompts[0][-1], 0.0, [])]
    best: Steps = []
    best_score = -math.inf

    for length in range(1, max_new_tokens + 1):
        own_BV = state.next_logits(tokens).log_softmax(-1)
        logprobs_BV = processor(state.rows, length - 1, own_BV) if processor else own_BV
        sums_B1 = logprobs_BV.new_tensor([[beam.logprob] for beam in active])
        totals = (logprobs_BV + sums_B1).flatten()

        # twice as many as beams, so that enough remain if each beam also ends
        top = totals.topk(min(2 * beams, len(totals))).indices
        chosen = logprobs_BV.flatten()[top].tolist()
        own = own_BV.flatten()[top].tolist()
        if any(map(math.isnan, chosen)):  # topk ranks NaN first
            raise FloatingPointError(NOT_FINITE)

        longer = []
        for rank, index in enumerate(top.tolist()):
            row, token = divmod(index, logprobs_BV.shape[-1])
            steps = [*active[row].steps, DecodeStep([token], [own[rank]])]
            beam = Beam(row, token, active[row].logprob + chosen[rank], steps)
            score = score_at(length, beam)

            if token not in stop and length < max_new_tokens:
                longer.append(beam)
            elif rank < beams and score > best_score:
                best = steps
                best_score = score

        active = longer[:beams]
        # at best, each further token has probability 1; the best length depends on the penalty
        bounds = [score_at(n, beam) for beam in active for n in (length + 1, max_new_tokens)]
        if max(bounds, default=-math.inf) <= best_score:
            break
        tokens = branch(state, active)
    return best


def branch(state: DecodingState, beams: list[Beam]) -> Tensor:
    """Let the rows of the state, some of which may repeat, be these. Returns their new tokens."""
    rows = [beam.row for beam in beams]
    state.rows = [list(state.rows[row]) for row in rows]
    state.memory = state.memory[:1].expand(len(rows), -1, -1)
    state.caches.select_rows(state.prompts_BT.new_tensor(rows))

    tokens = [beam.token for beam in beams]
    state.append(tokens)
    return state.prompts_BT.new_tensor(tokens)[:, None]
