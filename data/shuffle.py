"""Shuffling and random draws as pure functions of keys. No state is kept, so any position can be
computed directly, and resuming costs nothing."""

import hashlib

import numpy as np
from numpy import ndarray
from numpy.typing import ArrayLike

GOLDEN = 0x9E3779B97F4A7C15
ROUNDS = 10  # fewer would be enough for millions of examples, but not for five


def hash_seed(*parts: object) -> np.uint64:
    """A 64-bit seed; unlike a sum of seeds, (1, 2) and (2, 1) differ."""
    digest = hashlib.blake2b(repr(parts).encode(), digest_size=8).digest()
    return np.uint64(int.from_bytes(digest, "little"))


def splitmix64(x: ndarray) -> ndarray:
    """The finalizer of SplitMix64: every bit of x affects every bit of the result."""
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9
    x = (x ^ (x >> 27)) * 0x94D049BB133111EB
    return x ^ (x >> 31)


def random_words(seed: np.uint64, row_ids: ArrayLike, width: int) -> ndarray:
    """`width` random uint64s for each row, independent of which other rows are drawn with it."""
    rows = np.asarray(row_ids, np.uint64)[:, None]
    columns = np.arange(1, width + 1, dtype=np.uint64)
    return splitmix64(splitmix64(rows * GOLDEN + seed) + columns * GOLDEN)


def permutation(positions: ArrayLike, n: int, seed: np.uint64) -> ndarray:
    """A seeded permutation of range(n) at these positions: a Feistel network over the next
    power of four. A result outside of range(n) goes through it again, until it is inside
    (en.wikipedia.org/wiki/Format-preserving_encryption)."""
    x = np.array(positions, np.uint64)
    half = (max(n - 1, 1).bit_length() + 1) // 2
    low = (1 << half) - 1
    round_keys = random_words(seed, [0], ROUNDS)[0]
    outside = np.arange(len(x))

    while len(outside):
        left, right = x[outside] >> half, x[outside] & low
        for key in round_keys:
            left, right = right, left ^ (splitmix64(right + key) & low)
        x[outside] = left << half | right
        outside = outside[x[outside] >= n]
    return x.astype(np.int64)


def shuffled_ids(positions: ndarray, n: int, seed: object) -> ndarray:
    """The example at each position of an endless stream; each epoch is a new permutation."""
    epochs, offsets = np.divmod(positions, n)
    ids = np.empty(len(positions), np.int64)

    for epoch in np.unique(epochs).tolist():  # integers of Python: the key depends on their repr
        mask = epochs == epoch
        key = hash_seed("order", seed, epoch)
        ids[mask] = permutation(offsets[mask], n, key)
    return ids
