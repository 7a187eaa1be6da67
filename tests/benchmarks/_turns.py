"""What the benchmarks share: they take turns, since a machine that is not alone changes its speed."""

import multiprocessing
from statistics import median


def take_turns(names, rounds, measure):
    """{name: what measure(name) gave in each round}; every other round is in reverse order."""
    found = {name: [] for name in names}
    for i in range(rounds):
        for name in list(names)[:: -1 if i % 2 else 1]:
            found[name].append(measure(name))
    return found


def in_process(function, *arguments):
    """Its result, from a process that inherits no memory."""
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.apply(function, arguments)


def ratios(numbers, others):
    return [number / other for number, other in zip(numbers, others, strict=True)]


def spread(numbers):
    return f"{median(numbers):.2f} ({min(numbers):.2f} to {max(numbers):.2f})"
