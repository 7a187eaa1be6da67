"""Shuffles and draws are pure functions of their seeds, and statistically sound."""

import tracemalloc

import numpy as np
import pytest

from data.shuffle import hash_seed, permutation, random_words, shuffled_ids


@pytest.mark.parametrize("n", [1, 2, 3, 4, 5, 16, 17, 255, 256, 257, 1000, 4097])
def test_permutation_is_a_bijection(n):
    for seed in range(3):
        assert sorted(permutation(np.arange(n), n, hash_seed(seed))) == list(range(n))


def test_golden_values():
    """They may never change, or runs could not be resumed."""
    order = [2, 10, 6, 8, 7, 3, 11, 1, 5, 9, 0, 4]
    assert permutation(np.arange(12), 12, hash_seed("order", 0, 0)).tolist() == order
    far = [251168625084, 987426904348, 629373059043]
    assert permutation([0, 1, 10**12 - 1], 10**12, hash_seed("order", 7, 3)).tolist() == far
    draws = [[174168134663440147, 8473262865698366815], [11801357452341805288, 8113616257746570100]]
    assert random_words(hash_seed("draw", 0, "asked"), [0, 5], 2).tolist() == draws


def test_huge_permutations_need_no_memory():
    tracemalloc.start()
    ids = permutation(np.arange(64) + 10**11, 10**12, hash_seed("far"))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert len(set(ids)) == 64 and peak < 100_000


def test_a_position_outside_is_an_error():
    with pytest.raises(AssertionError, match="loop forever"):
        permutation([5], 5, hash_seed(0))


def test_every_epoch_is_a_new_permutation():
    n = 101
    stream = shuffled_ids(np.arange(3 * n), n, seed=4)
    epochs = [stream[i * n : (i + 1) * n].tolist() for i in range(3)]
    assert all(sorted(epoch) == list(range(n)) for epoch in epochs)
    assert epochs[0] != epochs[1] != epochs[2]
    assert shuffled_ids(np.arange(n), n, seed=5).tolist() != epochs[0]


def test_positions_are_independent():
    together = shuffled_ids(np.arange(50, 250), 60, seed=1)
    assert [shuffled_ids(np.array([i]), 60, 1)[0] for i in range(50, 250)] == together.tolist()


def test_permutations_are_uniform():
    """chi-squared of the image of each position, over many seeds: its mean is its degrees of freedom."""
    n, seeds = 7, 3000
    counts = np.zeros((n, n))
    for seed in range(seeds):
        counts[np.arange(n), permutation(np.arange(n), n, hash_seed("chi", seed))] += 1
    expected = seeds / n
    per_freedom = ((counts - expected) ** 2 / expected).sum() / (n - 1) ** 2
    assert 0.7 < per_freedom < 1.3


def test_draws_depend_on_their_row_alone():
    seed = hash_seed("draw", 3, "fate")
    together = random_words(seed, [4, 9, 10**15], 5)
    assert np.array_equal(random_words(seed, [9], 5)[0], together[1])
    assert np.array_equal(random_words(seed, [4, 9, 10**15], 3), together[:, :3])
    assert not np.array_equal(random_words(hash_seed("draw", 3, "asked"), [9], 5)[0], together[1])


def test_draws_are_uniform():
    words = random_words(hash_seed("uniform"), np.arange(400), 500)
    for shift in (0, 30, 60):
        counts = np.bincount(
            ((words >> np.uint64(shift)) & np.uint64(15)).ravel().astype(int), minlength=16
        )
        expected = words.size / 16
        assert ((counts - expected) ** 2 / expected).sum() < 45  # 15 degrees of freedom
    assert len(np.unique(words)) == words.size


def test_seeds_depend_on_order_and_type():
    assert (
        len({hash_seed(1, 2), hash_seed(2, 1), hash_seed("1", 2), hash_seed(12), hash_seed((1, 2))})
        == 5
    )
