"""Beam search: the most likely sequence, where greedy decoding takes the most likely token at each
step."""

import math
from collections.abc import Sequence
from operator import itemgetter

import torch
from torch import nn

from configs.registry import Count, check_value
from model.generate.decode import NOT_FINITE, DecodeStep, DecodingState, Processor, Rows

Steps = list[DecodeStep]


def score(steps: Steps, length: int, penalty: float) -> float:
    """A higher penalty favors longer sequences (arxiv.org/abs/1609.08144)."""
    return sum(step.logprobs[0] for step in steps) / length**penalty


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
    """The finished sequence with the best score, for one prompt; a step continues `beams` of them."""
    if model.kind != "encoder_decoder":
        raise ValueError(f"beam search needs an encoder_decoder; this model is a {model.kind}")
    check_value("beams", beams, Count)
    check_value("length_penalty", length_penalty, float)
    state = DecodingState(model, prompts, sources, max_new_tokens)
    active: list[Steps] = [[]]
    best = (-math.inf, active[0])

    for length in range(1, max_new_tokens + 1):
        logprobs_BV = state.next_logits().log_softmax(-1)
        if processor:
            logprobs_BV = processor(state.rows, length - 1, logprobs_BV)
        sums = [score(steps, 1, length_penalty) for steps in active]
        sums_B1 = logprobs_BV.new_tensor(sums)[:, None]
        totals = (logprobs_BV + sums_B1).flatten()

        # twice as many as beams, so that enough remain where each beam also ends
        top = totals.topk(min(2 * beams, len(totals))).indices
        chosen = logprobs_BV.flatten()[top].tolist()
        if any(map(math.isnan, chosen)):  # topk ranks NaN first
            raise FloatingPointError(NOT_FINITE)

        rows = []
        ids = []
        longer: list[Steps] = []
        for rank, index in enumerate(top.tolist()):
            row, i = divmod(index, logprobs_BV.shape[-1])
            steps = [*active[row], DecodeStep([i], [chosen[rank]])]
            if i in stop or length == max_new_tokens:
                final = score(steps, length, length_penalty)
                if rank < beams:
                    best = max(best, (final, steps), key=itemgetter(0))
            elif len(longer) < beams:
                rows.append(row)
                ids.append(i)
                longer.append(steps)

        # at best each further token has probability 1; which length is best depends on the penalty
        lengths = (length + 1, max_new_tokens)
        bounds = [score(steps, n, length_penalty) for steps in longer for n in lengths]
        if max(bounds, default=-math.inf) <= best[0]:
            break

        state.branch(rows, ids)
        active = longer
    return best[1]
