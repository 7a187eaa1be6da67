"""Beam search: the most likely sequence, where greedy decoding takes the most likely token at each
step."""

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import nn

from configs.registry import Count, check_value
from model.generate.decode import NOT_FINITE, DecodeStep, DecodingState, Rows
from model.generate.sampling import at_least_float32


class Hypothesis(NamedTuple):
    ids: list[int]
    logprobs: list[float]  # of each id

    def score(self, length: int, length_penalty: float) -> float:
        """A higher penalty favors longer sequences (arxiv.org/abs/1609.08144)."""
        return sum(self.logprobs) / length**length_penalty


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
) -> list[DecodeStep]:
    """The finished sequence with the best score, for one prompt; each step continues the `beams`
    most likely ones."""
    if model.kind != "encoder_decoder":
        raise ValueError(f"beam search needs an encoder_decoder; this model is a {model.kind}")
    check_value("beams", beams, Count)
    check_value("length_penalty", length_penalty, float)

    state = DecodingState(model, prompts, sources, max_new_tokens)

    active = [Hypothesis([], [])]
    best = active[0]
    best_score = -math.inf

    for length in range(1, max_new_tokens + 1):
        logprobs_BV = at_least_float32(state.next_logits()).log_softmax(-1)
        sums_B1 = logprobs_BV.new_tensor([[sum(h.logprobs)] for h in active])
        totals = (logprobs_BV + sums_B1).flatten()

        # twice as many as beams, so that enough remain where each beam also ends
        top = totals.topk(min(2 * beams, len(totals))).indices
        chosen = logprobs_BV.flatten()[top].tolist()
        if any(map(math.isnan, chosen)):  # topk ranks NaN first
            raise FloatingPointError(NOT_FINITE)

        rows = []
        longer: list[Hypothesis] = []
        for rank, index in enumerate(top.tolist()):
            row, i = divmod(index, logprobs_BV.shape[-1])
            ids, logprobs = active[row]
            hypothesis = Hypothesis([*ids, i], [*logprobs, chosen[rank]])
            if i in stop or length == max_new_tokens:
                score = hypothesis.score(length, length_penalty)
                if rank < beams and score > best_score:
                    best = hypothesis
                    best_score = score
            elif len(longer) < beams:
                rows.append(row)
                longer.append(hypothesis)

        # at best each further token has probability 1; of all lengths, the least or the most is best
        lengths = (length + 1, max_new_tokens)
        bounds = [h.score(n, length_penalty) for h in longer for n in lengths]
        if max(bounds, default=-math.inf) <= best_score:
            break

        state.branch(rows, [h.ids[-1] for h in longer])
        active = longer
    return [DecodeStep([i], [logprob]) for i, logprob in zip(*best, strict=True)]
