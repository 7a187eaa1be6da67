"""Beam search: the most likely sequence, where greedy decoding takes the most likely token at each step."""

from typing import Annotated, NamedTuple

import torch

from configs.registry import Bounds, check_value
from model.generate.decode import DecodingState
from model.generate.sampling import at_least_float32

Beams = Annotated[int, Bounds(least=1, most=1000)]
LengthPenalty = Annotated[float, Bounds(least=-10, most=10)]


class Hypothesis(NamedTuple):
    ids: list
    logprobs: list  # of each id

    def score(self, length_penalty):
        """A higher penalty favors longer sequences (arxiv.org/abs/1609.08144)."""
        return sum(self.logprobs) / len(self.ids) ** length_penalty


@torch.inference_mode()
def beam_search(model, source, prompt, *, beams, length_penalty, max_new_tokens, stop=None):
    """The finished hypothesis with the best score; each step continues the `beams` most likely ones."""
    if model.kind != "encoder_decoder":
        raise ValueError(f"beam search needs an encoder_decoder; this model is a {model.kind}")
    beams = check_value("beams", beams, Beams)
    length_penalty = check_value("length_penalty", length_penalty, LengthPenalty)
    state = DecodingState(model, [prompt], [source], max_new_tokens, stop)
    active, best = [Hypothesis([], [])], None
    for length in range(1, state.max_new_tokens + 1):
        logprobs_BV = at_least_float32(state.next_logits()).log_softmax(-1)
        longer = expand(active, logprobs_BV, beams)
        ended = [h for _, h in longer[:beams] if h.ids[-1] == stop or length == state.max_new_tokens]
        finished = [h for h in (best, *ended) if h]
        best = max(finished, key=lambda h: h.score(length_penalty), default=None)
        longer = [(row, h) for row, h in longer if h.ids[-1] != stop][:beams]
        rows, active = [row for row, _ in longer], [h for _, h in longer]
        if best and not any(can_still_win(h, best, length_penalty, state.max_new_tokens) for h in active):
            return best
        state.select_rows(rows)
        state.append(torch.tensor([h.ids[-1] for h in active], device=logprobs_BV.device))
    return best


def expand(active, logprobs_BV, beams):
    """(row, hypothesis) of the most likely hypotheses that are one token longer, best first: twice as many as
    beams, so that enough remain where each beam also ends."""
    sums = torch.tensor([sum(h.logprobs) for h in active], dtype=logprobs_BV.dtype)
    totals_BV = sums.to(logprobs_BV.device)[:, None] + logprobs_BV
    longer = []
    for index in totals_BV.flatten().topk(min(2 * beams, totals_BV.numel())).indices.tolist():
        row, i = divmod(index, totals_BV.shape[1])
        ids, logprobs = active[row]
        longer.append((row, Hypothesis([*ids, i], [*logprobs, logprobs_BV[row, i].item()])))
    return longer


def can_still_win(hypothesis, best, length_penalty, max_new_tokens):
    """Whether a continuation could score higher: at best each further token has probability 1."""
    total, lengths = sum(hypothesis.logprobs), (len(hypothesis.ids) + 1, max_new_tokens)
    return max(total / length**length_penalty for length in lengths) > best.score(length_penalty)
