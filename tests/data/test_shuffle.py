"""Shuffles and draws are pure functions of their seeds and rows, and statistically sound."""

import numpy as np
import pytest

from data.shuffle import hash_seed, permutation, random_words


@pytest.mark.parametrize("n", [*range(1, 18), 255, 256, 257, 1000, 4097])
def test_permutation_is_a_bijection(n):
    for seed in range(3):
        order = permutation(np.arange(n), n, hash_seed(seed))
        assert sorted(order) == list(range(n))


def test_golden_values():
    """They may never change, or runs could not be resumed."""
    order = permutation(np.arange(12), 12, hash_seed("order", 0, 0))
    assert order.tolist() == [2, 10, 6, 8, 7, 3, 11, 1, 5, 9, 0, 4]
    far = permutation([0, 1, 10**12 - 1], 10**12, hash_seed("order", 7, 3))
    assert far.tolist() == [251168625084, 987426904348, 629373059043]
    assert random_words(hash_seed("draw", 0, "asked"), [0, 5], 2).tolist() == [
        [174168134663440147, 8473262865698366815],
        [11801357452341805288, 8113616257746570100],
    ]
