"""Loaders: the batch of any step. Its examples, and every draw about them, follow from (seed, step)."""

from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from itertools import chain, pairwise

import numpy as np

from configs.errors import DataError
from data.shuffle import hash_seed, permutation, random_words, shuffled_ids

SORT_GROUP = 128  # batches of pairs that are sorted together by source length,
SUBGROUP = 2  # then this many at a time by target length


def rank_slice(n_rows, rank, world_size):
    """The rows of a batch that one process gets."""
    return slice(rank * n_rows // world_size, (rank + 1) * n_rows // world_size)


def row_rng(seed, row_ids):
    """Draws for each row that do not depend on the rows beside it."""
    return lambda purpose, width: random_words(hash_seed("draw", seed, purpose), row_ids, width)


def eval_subset(n, limit):
    """The ids to evaluate, of n examples: all, or `limit` of them, the same in every evaluation."""
    if limit is None or limit >= n:
        return np.arange(n)
    return np.sort(permutation(np.arange(limit), n, hash_seed("evaluation")))


class TokenLoader:
    """Text as consecutive sequences of equal length, each once per epoch."""

    def __init__(self, part, objective, tokenizer, *, batch_size, seed):
        self.part, self.objective, self.tokenizer = part, objective, tokenizer
        self.batch_size, self.seed, self.tokens_per_example = batch_size, seed, objective.seq_len
        self.n = (part.n_tokens - objective.lookahead) // objective.seq_len
        if self.n < 1:
            sizes = f"{part.n_tokens} tokens, and a window needs {objective.seq_len + objective.lookahead}"
            raise DataError(
                f"{part.path.stem} has {sizes}; give more text or lower model.context_length"
            )

    def batch(self, step, rank=0, world_size=1):
        rows = rank_slice(self.batch_size, rank, world_size)
        positions = step * self.batch_size + np.arange(self.batch_size)[rows]
        return self.make(self.example_ids(step)[rows], row_rng(self.seed, positions))

    def example_ids(self, step):
        return shuffled_ids(step * self.batch_size + np.arange(self.batch_size), self.n, self.seed)

    def seq_len(self, step):
        """Tokens per row of a batch."""
        return self.tokens_per_example

    def make(self, ids, draw):
        length = self.objective.seq_len
        rows = self.part.windows(ids * length, length + self.objective.lookahead)
        return self.objective.batch(rows, draw, self.tokenizer)

    def evaluation(self, limit=None, rank=0, world_size=1):
        """Batches of each sequence once, always with the same draws, and the rest as a shorter one."""
        ids = eval_subset(self.n, limit)
        starts = range(0, len(ids), self.batch_size)
        for start in starts[rank::world_size]:
            batch = ids[start : start + self.batch_size]
            yield self.make(batch, row_rng("evaluation", batch))
        end = self.n * self.objective.seq_len
        rest = self.part.n_tokens - end
        if len(ids) == self.n and rest > 1 and len(starts) % world_size == rank:
            row = self.part.windows(np.array([end]), rest)
            yield self.objective.batch(row, row_rng("evaluation", [self.n]), self.tokenizer)


class PairLoader:
    """Pairs, each once per epoch, batched with others of similar length to save padding."""

    def __init__(self, part, objective, tokenizer, *, batch_size, seed):
        self.part, self.objective, self.tokenizer = part, objective, tokenizer
        self.batch_size, self.seed = batch_size, seed
        lengths = part.lengths()
        truncated = np.stack(objective.truncated_lengths(*lengths.T), 1)
        too_long = (truncated < lengths).any(1)
        self.n_too_long = int(too_long.sum())
        self.pairs = (
            np.flatnonzero(~too_long) if objective.too_long == "drop" else np.arange(len(lengths))
        )
        self.n = len(self.pairs)
        if not self.n or (self.n_too_long and objective.too_long == "error"):
            source, target = lengths[lengths.sum(1).argmax()]
            n, context = f"{self.n_too_long} of {len(lengths)}", objective.context_length
            pairs = f"{n} pairs of {part.path.stem} are too long for a context of {context}"
            hint = "raise model.context_length or choose objective.too_long=truncate"
            raise DataError(f"{pairs}, the longest {source} + {target} tokens; {hint}")
        self.lengths = truncated[self.pairs]
        self.widths = objective.widths(*self.lengths.T)
        self.tokens_per_example = self.lengths.sum(1).mean()
        self.group_ids = lru_cache(2)(self.group_ids)  # consecutive steps share a group

    def batch(self, step, rank=0, world_size=1):
        return self.make(self.example_ids(step), rank_slice(self.batch_size, rank, world_size))

    def example_ids(self, step):
        """SORT_GROUP batches are sorted by length together, then taken in random order."""
        group, i = divmod(step, SORT_GROUP)
        [i] = permutation([i], SORT_GROUP, hash_seed("turns", self.seed, group))
        return self.group_ids(group)[i * self.batch_size : (i + 1) * self.batch_size]

    def group_ids(self, group):
        n = SORT_GROUP * self.batch_size
        return self.sort(shuffled_ids(group * n + np.arange(n), self.n, self.seed))

    def sort(self, ids):
        """In an order in which neighbors have similar source and target lengths."""
        subgroup = np.arange(len(ids)) // (SUBGROUP * self.batch_size)
        ids = ids[np.lexsort(self.widths[ids].T[::-1])]
        return ids[np.lexsort((self.widths[ids, -1], subgroup))]

    def seq_len(self, step):
        """Tokens per row of a batch, source and target together."""
        return int(self.widths[self.example_ids(step)].max(0).sum())

    def make(self, ids, rows=slice(None)):
        """Some rows of a batch, padded to the longest of all."""
        lengths, end = self.lengths[ids[rows]].tolist(), self.tokenizer.specials["end"]
        sources, targets = (self.part.texts(2 * self.pairs[ids[rows]] + role) for role in (0, 1))
        sources = [source[:n] for source, (n, _) in zip(sources, lengths, strict=True)]
        targets = [
            np.append(target, end)[: n + 1] for target, (_, n) in zip(targets, lengths, strict=True)
        ]
        return self.objective.batch(sources, targets, self.widths[ids].max(0), self.tokenizer)

    def evaluation(self, limit=None, rank=0, world_size=1):
        """Batches of each pair once."""
        ids = self.sort(eval_subset(self.n, limit))
        batches = np.split(ids, range(self.batch_size, len(ids), self.batch_size))
        yield from map(self.make, batches[rank::world_size])


def prefetch(batch, steps, pin=False):
    """batch(step) for each step, one step ahead in a thread; `pin` for fast copies to a GPU."""
    make = (lambda step: batch(step).pinned()) if pin else batch
    with ThreadPoolExecutor(1, "prefetch") as thread:
        futures = (thread.submit(make, step) for step in steps)
        for current, _ in pairwise(chain(futures, [None])):
            yield current.result()
