"""Windows: the batch of every step, for any step at once. Which windows or pairs stand in it, and every draw
about them, follow from (seed, step)."""

from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache

import numpy as np

from configs.errors import DataError
from data.shuffle import hash_seed, permutation, random_words, shuffled_ids

GROUP = 128  # batches of pairs that are sorted by length together,
STRIP = 2  # first by the lengths of their sources, then so many batches at a time by their targets'


def rank_slice(rows, rank, world):
    """The rows of one among several processes that divide a batch."""
    return slice(rank * rows // world, (rank + 1) * rows // world)


def row_rng(seed, numbers):
    """A row's draws depend on its place in the stream, not on the rows beside it."""
    return lambda purpose, width: random_words(hash_seed("draw", seed, purpose), numbers, width)


def eval_subset(n, limit):
    """Which of n examples are looked at in an evaluation: all, or always the same ones of them."""
    if limit is None or limit >= n:
        return np.arange(n)
    return np.sort(permutation(np.arange(limit), n, hash_seed("evaluation")))


class TokenLoader:
    """Text in windows of equal length that do not overlap, each once in every epoch."""

    def __init__(self, part, objective, tokenizer, *, batch_size, seed):
        self.part, self.objective, self.tokenizer = part, objective, tokenizer
        self.batch_size, self.seed = batch_size, seed
        self.tokens_per_example = objective.seq_len
        self.n = (part.n_tokens - objective.lookahead) // objective.seq_len
        if self.n < 1:
            raise DataError(
                f"{part.path.stem} holds {part.n_tokens} tokens and a window needs "
                f"{objective.seq_len + objective.lookahead}; give more text or lower model.context_length"
            )

    def batch(self, step, rank=0, world=1):
        places = self.places(step)[rank_slice(self.batch_size, rank, world)]
        return self.rows(shuffled_ids(places, self.n, self.seed), row_rng(self.seed, places))

    def places(self, step):
        """Of the rows of a batch in the stream."""
        return step * self.batch_size + np.arange(self.batch_size)

    def example_ids(self, step):
        """Which windows a batch holds."""
        return shuffled_ids(self.places(step), self.n, self.seed)

    def seq_len(self, step):
        """Of a batch, in tokens a row: windows are all alike."""
        return self.tokens_per_example

    def rows(self, numbers, draw):
        length = self.objective.seq_len
        rows = self.part.windows(numbers * length, length + self.objective.lookahead)
        return self.objective.batch(rows, draw, self.tokenizer)

    def evaluation(self, limit=None, rank=0, world=1):
        """Batches with each window once, and what is left over at the end as a short one. What is drawn about
        a window is always the same."""
        numbers = eval_subset(self.n, limit)
        starts = range(0, len(numbers), self.batch_size)
        for start in starts[rank::world]:
            batch = numbers[start : start + self.batch_size]
            yield self.rows(batch, row_rng("evaluation", batch))
        end = self.n * self.objective.seq_len
        left = self.part.n_tokens - end
        if len(numbers) == self.n and left > 1 and len(starts) % world == rank:
            row = self.part.windows(np.array([end]), left)
            yield self.objective.batch(row, row_rng("evaluation", [self.n]), self.tokenizer)


class PairLoader:
    """Pairs, each once in every epoch, beside others of like length so that little is padded."""

    def __init__(self, part, objective, tokenizer, *, batch_size, seed):
        self.part, self.objective, self.tokenizer = part, objective, tokenizer
        self.batch_size, self.seed = batch_size, seed
        lengths = part.lengths()
        kept = np.stack(objective.kept(*lengths.T), 1)
        too_long = (kept < lengths).any(1)
        self.n_too_long = int(too_long.sum())
        if self.n_too_long and objective.too_long == "error":
            worst = int(lengths.sum(1).argmax())
            raise DataError(
                f"a pair of {part.path.stem} has a source of {lengths[worst][0]} tokens and a target of "
                f"{lengths[worst][1]}, too many for a context of {objective.context_length}; raise model.context_length, "
                "or choose objective.too_long=drop or truncate"
            )
        self.pairs = np.flatnonzero(~too_long) if objective.too_long == "drop" else np.arange(len(lengths))
        self.lengths = kept[self.pairs]
        self.widths = objective.widths(*self.lengths.T)
        self.n = len(self.pairs)
        self.tokens_per_example = self.lengths.sum(1).mean() if self.n else 0
        self.due = lru_cache(2)(self.due_in)  # the steps of a group follow one another
        if not self.n:
            raise DataError(
                f"none of the {len(lengths)} pairs of {part.path.stem} fits into a context of "
                f"{objective.context_length} tokens; raise model.context_length or choose objective.too_long=truncate"
            )

    def batch(self, step, rank=0, world=1):
        return self.rows(self.example_ids(step), rank_slice(self.batch_size, rank, world))

    def example_ids(self, step):
        """Which pairs a batch holds: those due in GROUP steps are sorted; then their batches are shuffled."""
        group, turn = divmod(step, GROUP)
        [turn] = permutation([turn], GROUP, hash_seed("turns", self.seed, group))
        return self.due(group)[turn * self.batch_size : (turn + 1) * self.batch_size]

    def seq_len(self, step):
        """Of a batch, in tokens a row."""
        return int(self.widths[self.example_ids(step)].max(0).sum())

    def due_in(self, group):
        places = group * GROUP * self.batch_size + np.arange(GROUP * self.batch_size)
        return self.sorted(shuffled_ids(places, self.n, self.seed))

    def sorted(self, pairs):
        """In such an order that neighbours have sources, and targets, of like lengths."""
        strip = np.arange(len(pairs)) // (STRIP * self.batch_size)
        pairs = pairs[np.lexsort(self.widths[pairs].T[::-1])]
        return pairs[np.lexsort((self.widths[pairs, -1], strip))]

    def rows(self, batch, mine=slice(None)):
        """Some rows of a batch, which are as wide as its widest."""
        sources, answers = self.texts(batch[mine])
        return self.objective.batch(sources, answers, self.widths[batch].max(0), self.tokenizer)

    def texts(self, pairs):
        """The sources of these pairs, and their targets with the end; as much as there is room for."""
        sources, targets = (self.part.texts(2 * self.pairs[pairs] + role) for role in (0, 1))
        end = self.tokenizer.specials["end"]
        lengths = self.lengths[pairs].tolist()
        return (
            [source[:kept] for source, (kept, _) in zip(sources, lengths, strict=True)],
            [np.append(target, end)[: kept + 1] for target, (_, kept) in zip(targets, lengths, strict=True)],
        )

    def evaluation(self, limit=None, rank=0, world=1):
        """Batches with each pair once."""
        numbers = self.sorted(eval_subset(self.n, limit))
        batches = np.split(numbers, range(self.batch_size, len(numbers), self.batch_size))
        yield from map(self.rows, batches[rank::world])


def prefetch(batch, steps, pin=False):
    """batch(step) for each step, one ahead; pinned, where a GPU fetches it."""

    def make(step):
        made = batch(step)
        return made.pinned() if pin else made

    with ThreadPoolExecutor(1, "prefetch") as thread:
        ahead = None
        for step in steps:
            ahead, due = thread.submit(make, step), ahead
            if due:
                yield due.result()
        if ahead:
            yield ahead.result()
