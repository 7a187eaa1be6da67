"""Scaling law: what runs of several sizes and lengths say about others.

The loss is ((A / N)^(a / b) + B / D)^b, with N parameters and D tokens (arxiv.org/abs/2001.08361).
"""

from typing import Any

import torch
from torch import Tensor


class ScalingLaw:
    """The law that fits runs best. A row has the parameters, tokens, loss and seconds of a run."""

    def __init__(self, rows: list[list[float]]):
        self.runs = torch.tensor(rows, dtype=torch.float64).reshape(-1, 4).T
        n, d, losses, _ = self.runs
        if len(n) < 8 or min(len(n.unique()), len(d.unique())) < 3:
            raise ValueError(
                "a law needs eight runs, of three sizes and three lengths; these are "
                f"{len(n)} that are finished and have parameters in metrics.jsonl, of "
                f"{len(n.unique())} sizes and {len(d.unique())} lengths"
            )

        self.law = fit(n, d, losses)
        if not all(0.01 < exponent < 2 for exponent in self.law[2:].exp()):  # NaN, too
            raise ValueError("no law fits: the losses do not fall with size and length as it says")
        self.fitted = loss_of(self.law, n, d)
        self.errors = self.fitted / losses - 1

    def describe(self) -> str:
        constants = "A = {:,.0f}, B = {:,.0f}, a = {:.3f}, b = {:.3f}".format(*self.law.exp())
        error = self.errors.square().mean().sqrt()
        return f"law: ((A / N)^(a / b) + B / D)^b with {constants}; its error is {error:.2%}"

    def expect(self, size: Any, length: Any) -> str:
        """The loss of a further run, with a 95 % interval."""
        n, d, *_ = self.runs
        loss = loss_of(self.law, size, length)

        # the scatter of the runs around the law
        freedom = len(n) - len(self.law)
        variance = self.errors.square().sum() / freedom * loss**2

        # what the law owes to each of them (jackknife)
        numbers = torch.arange(len(n))
        laws = [fit(*self.runs[:3, numbers != i]) for i in numbers]
        spread = torch.stack([loss_of(law, size, length) for law in laws])
        variance += (len(n) - 1) * spread.var(correction=0)

        t = 2 + 3 / freedom  # about Student's
        half = t * variance.sqrt()
        times = size * length / (n * d).max()
        compute = f"{times:.1f} times the largest compute"
        run = f"{size:,.0f} parameters, {length:,.0f} tokens ({compute})"

        return f"{run}: {loss:.3f} ({loss - half:.3f} to {loss + half:.3f})"

    def expect_in(self, seconds: float) -> str:
        """The lowest loss that this time can reach. Tokens take time in proportion to the size, as
        in the run of the largest compute."""
        n, d, _, durations = self.runs
        compute = n * d
        speed = (compute / durations)[compute.argmax()]
        sizes = n.max() * torch.logspace(-3, 6, 9001)
        lengths = speed * seconds / sizes
        best = loss_of(self.law, sizes, lengths).argmin()
        return f"best in about {seconds:,.0f} seconds: {self.expect(sizes[best], lengths[best])}"


def loss_of(law: Tensor, n: Any, d: Any) -> Tensor:
    """The losses of n parameters and d tokens. law: the logarithms of A, B, a and b."""
    n_scale, d_scale, a, b = law.exp()
    return ((n_scale / n) ** (a / b) + d_scale / d) ** b


def fit(n: Tensor, d: Tensor, losses: Tensor) -> Tensor:
    """The law with the least squares of relative errors."""

    def error(law: Tensor) -> Tensor:
        return (loss_of(law, n, d) / losses).log().square().sum()

    starts = [[n.mean(), d.mean(), a, b] for a in (0.1, 0.4) for b in (0.1, 0.4)]
    return min((minimize(error, start) for start in n.new_tensor(starts).log()), key=error)


def minimize(function: Any, start: Tensor) -> Tensor:
    """The minimum that is reached from a start."""
    place = start.requires_grad_()
    optimizer = torch.optim.LBFGS([place], max_iter=500, line_search_fn="strong_wolfe")

    def closure() -> Tensor:
        optimizer.zero_grad()
        value = 1e6 * function(place)  # else it would stop too early
        value.backward()
        return value

    optimizer.step(closure)
    return place.detach()
