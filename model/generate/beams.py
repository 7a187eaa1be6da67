"""Beam search: the most likely sequence, where greedy decoding takes the most likely token at each step."""

import math
from typing import Annotated, NamedTuple

import torch

from configs.registry import Bounds, check_value
from model.generate.decode import NOT_FINITE, DecodingState
from model.generate.sampling import at_least_float32

Beams = Annotated[int, Bounds(least=1, most=1000)]
LengthPenalty = Annotated[float, Bounds(least=-10, most=10)]


class Hypothesis(NamedTuple):
    ids: list
    logprobs: list  # of each id

    def score(self, length, length_penalty):
        """A higher penalty favors longer sequences (arxiv.org/abs/1609.08144)."""
        return sum(self.logprobs) / length**length_penalty


@torch.inference_mode()
def beam_search(model, source, prompt, *, beams, length_penalty, max_new_tokens, stop=None):
    """The finished hypothesis with the best score; each step continues the `beams` most likely ones."""
    if model.kind != "encoder_decoder":
        raise ValueError(f"beam search needs an encoder_decoder; this model is a {model.kind}")
    beams = check_value("beams", beams, Beams)
    length_penalty = check_value("length_penalty", length_penalty, LengthPenalty)
    state = DecodingState(model, [prompt], [source], max_new_tokens, stop)
    active, best, best_score = [Hypothesis([], [])], None, -math.inf
    for length in range(1, state.max_new_tokens + 1):
        logprobs_BV = at_least_float32(state.next_logits()).log_softmax(-1)
        totals_BV = logprobs_BV + logprobs_BV.new_tensor([[sum(h.logprobs)] for h in active])
        # twice as many as beams, so that enough remain where each beam also ends
        top = totals_BV.flatten().topk(min(2 * beams, totals_BV.numel())).indices
        longer = []
        chosen = logprobs_BV.flatten()[top].tolist()
        if any(map(math.isnan, chosen)):  # topk ranks NaN first
            raise FloatingPointError(NOT_FINITE)
        for rank, (index, logprob) in enumerate(zip(top.tolist(), chosen, strict=True)):
            row, i = divmod(index, state.vocab_size)
            ids, logprobs = active[row]
            hypothesis = Hypothesis([*ids, i], [*logprobs, logprob])
            if i in state.stop or length == state.max_new_tokens:
                score = hypothesis.score(length, length_penalty)
                if rank < beams and score > best_score:
                    best, best_score = hypothesis, score
            elif len(longer) < beams:
                longer.append((row, hypothesis))
        rows, active = [row for row, _ in longer], [h for _, h in longer]
        # at best each further token has probability 1
        bounds = [
            h.score(n, length_penalty) for h in active for n in (length + 1, state.max_new_tokens)
        ]
        if max(bounds, default=-math.inf) <= best_score:
            break
        state.select_rows(rows)
        state.append([h.ids[-1] for h in active])
    return best
