"""Order: which example stands where in an endless stream, and every other draw, as pure functions of keys.
Nothing is remembered, so any place can be looked up at once: resuming costs nothing."""

import hashlib

import numpy as np

GOLDEN = np.uint64(0x9E3779B97F4A7C15)
ROUNDS = 10  # few would do for millions of examples, and not for five


def hash_seed(*words):
    """64 bits for any words: (1, 2) and (2, 1) differ, as sums of seeds would not."""
    return np.frombuffer(hashlib.blake2b(repr(words).encode(), digest_size=8).digest(), "<u8")[0]


def splitmix64(x):
    """The finaliser of SplitMix64: every bit of x moves every bit of the result."""
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


def random_words(word, numbers, width):
    """`width` random 64-bit words for each of the numbered rows, whichever rows are asked for together."""
    rows = splitmix64(np.asarray(numbers, np.uint64)[:, None] * GOLDEN + word)
    return splitmix64(rows + np.arange(1, width + 1, dtype=np.uint64) * GOLDEN)


def permutation(positions, n, word):
    """Where a keyed permutation of range(n) sends the positions: a Feistel network over the next even power
    of two, walked on while it lands outside (en.wikipedia.org/wiki/Format-preserving_encryption)."""
    x = np.array(positions, np.uint64)
    assert x.size == 0 or int(x.max()) < n, "a position outside would walk for ever"
    half = np.uint64((max(n - 1, 1).bit_length() + 1) // 2)
    low = (np.uint64(1) << half) - np.uint64(1)
    keys = random_words(word, [0], ROUNDS)[0]
    outside = np.arange(len(x))
    while len(outside):
        left, right = x[outside] >> half, x[outside] & low
        for round_key in keys:
            left, right = right, left ^ (splitmix64(right + round_key) & low)
        x[outside] = left << half | right
        outside = outside[x[outside] >= n]
    return x.astype(np.int64)


def shuffled_ids(positions, n, seed):
    """The examples at these positions of an endless stream in which every epoch is a new permutation of all
    n of them."""
    epochs, within = np.divmod(positions, n)
    examples = np.empty(len(positions), np.int64)
    for epoch in np.unique(epochs):
        there = epochs == epoch
        examples[there] = permutation(within[there], n, hash_seed("order", seed, int(epoch)))
    return examples
