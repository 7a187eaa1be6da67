"""Scaling law: what runs of several sizes and lengths say about others.

The loss is ((A / N)^(a / b) + B / D)^b, with N parameters and D tokens (arxiv.org/abs/2001.08361).
"""

from typing import Any

import torch
from torch import Tensor


def loss_of(law: Tensor, n: Any, d: Any) -> Tensor:
    n_scale, d_scale, a, b = law.exp()
    return ((n_scale / n) ** (a / b) + d_scale / d) ** b


def fit(n: Tensor, d: Tensor, losses: Tensor) -> Tensor:
    """The law with the least squares of relative errors: the logarithms of A, B, a and b."""

    def error(law: Tensor) -> Tensor:
        return (loss_of(law, n, d) / losses).log().square().sum()

    def optimize(a: float, b: float) -> Tensor:
        """The optimum that is reached from these exponents."""
        law = torch.stack([n.mean(), d.mean(), *n.new_tensor([a, b])])
        law = law.log().requires_grad_()
        optimizer = torch.optim.LBFGS([law], max_iter=500, line_search_fn="strong_wolfe")

        def closure() -> Tensor:
            optimizer.zero_grad()
            value = 1e6 * error(law)  # else it would stop too early
            value.backward()
            return value

        optimizer.step(closure)
        return law.detach()

    laws = [optimize(a, b) for a in (0.1, 0.4) for b in (0.1, 0.4)]
    return min(laws, key=error)


def expect(law: Tensor, runs: Tensor, size: Any, length: Any) -> str:
    """The loss of a further run, with a 95 % interval."""
    n, d, losses = runs
    loss = loss_of(law, size, length)

    # the scatter of the runs around the law
    errors = loss_of(law, n, d) / losses - 1
    freedom = len(n) - len(law)
    variance = errors.square().sum() / freedom * loss**2

    # what the law owes to each of them (jackknife)
    numbers = torch.arange(len(n))
    others = [fit(*runs[:, numbers != i]) for i in numbers]
    spread = torch.stack([loss_of(other, size, length) for other in others])
    variance += (len(n) - 1) * spread.var(correction=0)

    t = 2 + 3 / freedom  # about Student's
    half = t * variance.sqrt()
    times = size * length / (n * d).max()
    run = f"{size:,.0f} parameters, {length:,.0f} tokens ({times:.1f} times the largest compute)"
    return f"{run}: {loss:.3f} ({loss - half:.3f} to {loss + half:.3f})"


def predict(
    rows: list[list[float]], at: list[float] | None, seconds: float | None
) -> tuple[str, list[float]]:
    """Returns (what the law says, its loss of each run). A row has the parameters, tokens, loss and
    seconds of a run."""
    runs = torch.tensor(rows, dtype=torch.float64).reshape(-1, 4).T
    n, d, losses, times = runs
    if len(n) < 8 or min(len(n.unique()), len(d.unique())) < 3:
        count = f"these are {len(n)} that are finished and have parameters in metrics.jsonl"
        raise ValueError(f"a law needs eight runs, of three sizes and three lengths; {count}")

    law = fit(n, d, losses)
    *_, a, b = law.exp().tolist()
    if not (0.01 < a < 2 and 0.01 < b < 2):  # NaN, too
        raise ValueError("no law fits: the losses do not fall with size and length as it says")

    fitted = loss_of(law, n, d)
    error = (fitted / losses - 1).square().mean().sqrt()
    constants = "A = {:,.0f}, B = {:,.0f}, a = {:.3f}, b = {:.3f}".format(*law.exp())
    lines = [f"law: ((A / N)^(a / b) + B / D)^b with {constants}; its error is {error:.2%}"]

    if at:
        lines.append(expect(law, runs[:3], *at))

    if seconds:
        # tokens take time in proportion to the size, as in the run of the largest compute
        compute = n * d
        speed = (compute / times)[compute.argmax()]
        sizes = n.max() * torch.logspace(-3, 6, 9001)
        lengths = speed * seconds / sizes
        best = loss_of(law, sizes, lengths).argmin()
        expected = expect(law, runs[:3], sizes[best], lengths[best])
        lines.append(f"best in about {seconds:,.0f} seconds: {expected}")
    return "\n".join(lines), fitted.tolist()
