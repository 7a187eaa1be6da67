"""Generate: a prompt is read once, then each new token costs one step through the cache."""

from typing import NamedTuple

import torch

from configs.registry import matches
from model.generate.sampling import GREEDY, at_least_float32, check_sampling, sample_next, uniform

LONGEST = 1_000_000


def left_pad(rows, model):
    """(tokens, visible); visible is None where nothing is padded."""
    longest, device = max(map(len, rows)), model.embedding.table.weight.device
    tokens = torch.tensor([[0] * (longest - len(row)) + row for row in rows], device=device)
    if all(len(row) == longest for row in rows):
        return tokens, None
    first = longest - torch.tensor([[len(row)] for row in rows], device=device)
    return tokens, torch.arange(longest, device=device) >= first


def check_token_rows(texts, model, what):
    """Token ids are checked where they enter, so that no forward pass need look at them."""
    words = model.embedding.table.num_embeddings
    if not isinstance(texts, list) or not texts or not all(isinstance(text, list) for text in texts):
        raise ValueError(f"{what}s must be lists of token ids in a list and are {str(texts)!r:.60}")
    for text in texts:
        if not text:
            raise ValueError(f"a {what} is empty; it needs at least one token")
        if odd := [i for i in text if not matches(i, int)]:
            raise ValueError(f"a {what} has {odd[0]!r}, which is no token id")
        if len(text) > model.context_length:
            raise ValueError(
                f"a {what} has {len(text)} tokens and the model's context is {model.context_length}: shorten it"
            )
        if not 0 <= min(text) <= max(text) < words:
            raise ValueError(f"a {what} has ids from {min(text)} to {max(text)}; the vocabulary has {words}")


def check_request(model, prompts, sources, max_new_tokens, stop=None):
    if model.training:
        raise ValueError("generate needs a model that is not training: call model.eval() first")
    if model.kind == "encoder":
        raise ValueError("an encoder fills in masked tokens and cannot continue a text")
    if (model.kind == "encoder_decoder") != (sources is not None):
        raise ValueError("sources go with an encoder_decoder, and an encoder_decoder with sources")
    check_token_rows(prompts, model, "prompt")
    if sources is not None:
        check_token_rows(sources, model, "source")
        if len(sources) != len(prompts):
            raise ValueError(
                f"there are {len(sources)} sources and {len(prompts)} prompts; each source needs one"
            )
    if not matches(max_new_tokens, int) or not 1 <= max_new_tokens <= LONGEST:
        raise ValueError(
            f"max_new_tokens must be a whole number from 1 to {LONGEST:,} and is {max_new_tokens!r}"
        )
    words = model.embedding.table.num_embeddings
    if stop is not None and not (matches(stop, int) and 0 <= stop < words):
        raise ValueError(f"stop must be an id of the vocabulary, below {words}, or None, and is {stop!r}")


class DecodingState:
    """Rows of ids on their way through a model. What is there at first is read at once, then each new id
    costs one step through the cache. A row that has outgrown the context goes on with its newer half, which
    alone is read anew. A source is encoded once."""

    def __init__(self, model, rows, most, sources=None):
        self.model, self.rows, self.caches = model, [list(row) for row in rows], None
        self.size = min(model.context_length, max(map(len, rows)) + most)
        self.memory, self.memory_visible = None, None
        if sources is not None:
            tokens, self.memory_visible = left_pad(sources, model)
            with torch.inference_mode():
                self.memory = model.encode(tokens, visible=self.memory_visible)

    def hidden(self, tokens, rows=slice(None), **seen):
        if self.memory is None:
            return self.model.hidden(tokens, **seen)
        visible = None if self.memory_visible is None else self.memory_visible[rows]
        return self.model.decode(tokens, self.memory[rows], memory_visible=visible, **seen)

    @torch.inference_mode()
    def read(self):
        """The scores of the word that comes next in each row."""
        if self.caches is None:
            self.tokens, self.visible = left_pad(self.rows, self.model)
            self.caches = self.model.new_caches(self.size)
        hidden = self.hidden(self.tokens, visible=self.visible, caches=self.caches)
        logits_BV = self.model.head(hidden[:, -1])
        if not logits_BV.amax().isfinite():  # a NaN is its row's maximum
            raise FloatingPointError("the model's scores are not finite numbers; its weights are of no use")
        return logits_BV

    def write(self, ids):
        """A new id for each row."""
        self.tokens = ids[:, None]
        for row, i in zip(self.rows, ids.tolist(), strict=True):
            row.append(i)
        if self.visible is not None:
            self.visible = torch.cat([self.visible, torch.ones_like(self.visible[:, :1])], 1)
        if over := [number for number, row in enumerate(self.rows) if len(row) > self.model.context_length]:
            self.halve(over)

    @torch.inference_mode()
    def halve(self, over):
        """These rows go on with their newer half. All of it but the newest id is read anew, into their last
        slots; the other rows stay as they are."""
        half = self.model.context_length // 2 or 1
        for number in over:
            self.rows[number] = self.rows[number][-half:]
        if len(over) == len(self.rows):
            self.caches = None
            return
        slots = max(map(len, self.rows)) - 1
        for layer in self.caches:
            layer.self_attn.keep_last(slots)
        self.visible = self.visible[:, -slots - 1 :]
        self.visible[over, : slots + 1 - half] = False
        if half > 1:
            anew, rows = self.model.new_caches(half - 1), [self.rows[number][:-1] for number in over]
            self.hidden(torch.tensor(rows, device=self.tokens.device), over, caches=anew)
            for layer, other in zip(self.caches, anew, strict=True):
                layer.self_attn.overwrite_rows(over, other.self_attn)

    def keep(self, numbers):
        """Go on with the rows of these numbers, some of them several times; of a batch without padding."""
        self.rows = [list(self.rows[number]) for number in numbers]
        if self.memory is not None:
            self.memory = self.memory[numbers]
        for layer in self.caches:
            layer.self_attn.select_rows(numbers)
            layer.cross_attn.select_rows(numbers)


class DecodeStep(NamedTuple):
    """One new id for each row, None where the row has ended, and the scores they were chosen by."""

    ids: list
    logits_BV: torch.Tensor

    def logprobs(self):
        """How likely each new id was to the model itself, before temperature and all the rest."""
        logprobs_BV = at_least_float32(self.logits_BV).log_softmax(-1)
        return [None if i is None else row[i].item() for i, row in zip(self.ids, logprobs_BV, strict=True)]


@torch.inference_mode()
def seen_tokens(rows, logits_BV):
    """(B, V), true for the words that stand in a row."""
    written_BV = torch.zeros_like(logits_BV, dtype=torch.bool)
    for row, written in zip(rows, written_BV, strict=True):
        written[row] = True
    return written_BV


def decode(model, prompts, *, max_new_tokens, sampling=GREEDY, sources=None, stop=None, numbers=None):
    """What `generate` does, told in full: a Step each."""
    check_request(model, prompts, sources, max_new_tokens, stop)
    check_sampling(sampling, model.embedding.table.num_embeddings)
    numbers = range(len(prompts)) if numbers is None else numbers
    if len(numbers) != len(prompts):
        raise ValueError(f"there are {len(numbers)} numbers and {len(prompts)} prompts; each prompt has one")
    return decode_steps(
        DecodingState(model, prompts, max_new_tokens, sources), max_new_tokens, sampling, stop, numbers
    )


def decode_steps(reader, most, sampling, stop, numbers):
    written_BV, ended = None, [False] * len(reader.rows)
    for step in range(most):
        logits_BV = reader.read()
        if step == 0 and sampling.repetition_penalty != 1:
            written_BV = seen_tokens(reader.rows, logits_BV)
        draws = [uniform(sampling.seed, number, step) for number in numbers] if sampling.temperature else None
        with torch.inference_mode():
            chosen = sample_next(logits_BV, written_BV, draws, sampling)
            if written_BV is not None:
                written_BV.scatter_(1, chosen[:, None], True)
        reader.write(chosen)
        ids = [None if end else i for end, i in zip(ended, chosen.tolist(), strict=True)]
        yield DecodeStep(ids, logits_BV)
        ended = [end or i == stop for end, i in zip(ended, ids, strict=True)]
        if all(ended):
            return


def generate(model, prompts, *, max_new_tokens, sampling=GREEDY, sources=None, stop=None, numbers=None):
    """Continue each prompt (a list of token ids). An iterator over steps: one list each: a new id for each
    row, None for those that have written `stop`. A row's ids do not depend on the other rows: what is drawn
    for it follows from the seed, the step and the number of the row, which is its place unless `numbers` has
    others.

    An encoder-decoder answers `sources`; its prompts are the beginnings of the answers, most often one start
    token. A row that reaches the context goes on with its newer half.
    """
    told = decode(
        model,
        prompts,
        max_new_tokens=max_new_tokens,
        sampling=sampling,
        sources=sources,
        stop=stop,
        numbers=numbers,
    )
    return (step.ids for step in told)
