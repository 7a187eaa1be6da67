"""Beams: the likeliest answer as a whole, where greedy decoding takes the likeliest word each time."""

from typing import NamedTuple

import torch

from configs.registry import matches
from model.generate.decode import DecodingState, check_request
from model.generate.sampling import at_least_float32

MOST = 1000


class Hypothesis(NamedTuple):
    ids: list
    logprobs: list  # of each id

    def score(self, length_penalty):
        """The higher the penalty, the less a long answer pays for its length (arxiv.org/abs/1609.08144)."""
        return sum(self.logprobs) / len(self.ids) ** length_penalty


def check_search(beams, length_penalty):
    if not matches(beams, int) or not 1 <= beams <= MOST:
        raise ValueError(f"beams is {beams!r}; expected a whole number from 1 to {MOST}")
    if not matches(length_penalty, float) or abs(length_penalty) > 10:
        raise ValueError(f"length_penalty is {length_penalty!r}; expected a number from -10 to 10")


def beam_search(model, source, prompt, *, beams, length_penalty, max_new_tokens, stop=None):
    """At each step the `beams` likeliest beginnings go on; the answer that ends with the best score wins."""
    if model.kind != "encoder_decoder":
        raise ValueError(f"beams search for an encoder_decoder's answer; this model is a {model.kind}")
    check_request(model, [prompt], [source], max_new_tokens, stop)
    check_search(beams, length_penalty)
    reader = DecodingState(model, [prompt], max_new_tokens, [source])
    return search(reader, beams, length_penalty, max_new_tokens, stop)


def search(reader, beams, length_penalty, most, stop):
    going, best = [Hypothesis([], [])], None
    for length in range(1, most + 1):
        logprobs_BV = at_least_float32(reader.read()).log_softmax(-1)
        longer = expand(going, logprobs_BV, beams)
        ended = [answer for _, answer in longer[:beams] if answer.ids[-1] == stop or length == most]
        known = [answer for answer in (best, *ended) if answer]
        best = max(known, key=lambda answer: answer.score(length_penalty), default=None)
        going = [(beam, answer) for beam, answer in longer if answer.ids[-1] != stop][:beams]
        if best and not any(can_still_win(answer, best, length_penalty, most) for _, answer in going):
            return best
        origins, going = [beam for beam, _ in going], [answer for _, answer in going]
        reader.keep(origins)
        reader.write(torch.tensor([answer.ids[-1] for answer in going], device=logprobs_BV.device))
    return best


def expand(going, logprobs_BV, beams):
    """(beam, answer) of the likeliest answers that are one word longer, the likeliest first: enough of them
    that `beams` go on, though each beam may end."""
    sums = torch.tensor([sum(answer.logprobs) for answer in going], dtype=logprobs_BV.dtype)
    totals_BV = sums.to(logprobs_BV.device)[:, None] + logprobs_BV
    words = totals_BV.shape[1]
    found = []
    for place in totals_BV.flatten().topk(min(2 * beams, totals_BV.numel())).indices.tolist():
        beam, i = divmod(place, words)
        ids, logprobs = going[beam]
        found.append((beam, Hypothesis([*ids, i], [*logprobs, logprobs_BV[beam, i].item()])))
    return found


def can_still_win(answer, best, length_penalty, most):
    """Whether what goes on from here could still be better: at best every further word is certain."""
    total, lengths = sum(answer.logprobs), (len(answer.ids) + 1, most)
    return max(total / length**length_penalty for length in lengths) > best.score(length_penalty)
