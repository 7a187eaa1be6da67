"""Mixture of experts: a router sends each token to a few of many feed-forward networks."""

from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from configs.registry import Count, Natural, NonNegative, build
from model.attend import exact_dtype
from model.cuda import has_grouped_mm
from model.feedforward import FFNS


class MixtureOfExperts(nn.Module):
    """The sum of top_k of n_experts MLPs, weighted by the router's probabilities, and of n_shared
    more, which process all tokens (arxiv.org/abs/2401.04088, arxiv.org/abs/2401.06066). The weights
    are scaled to sum to 1, but not with top_k=1: the router would learn nothing. An expert takes
    any number of tokens, so no token is dropped or depends on other rows."""

    def __init__(
        self,
        d_model: int,
        n_experts: Count,
        top_k: Count,
        n_shared: Natural,
        balance_loss: NonNegative,
        expert: dict,
    ):
        super().__init__()
        if top_k > n_experts:
            raise ValueError(f"top_k ({top_k}) must be at most n_experts ({n_experts})")

        self.top_k = top_k
        self.balance_loss = balance_loss
        self.router = nn.Linear(d_model, n_experts, bias=False)

        make_mlp = partial(build, "expert", MLPS, shared={"d_model": d_model, "bias": False})
        self.experts = make_mlp(expert)  # holds stacks of weights, and is never called itself

        for linear in self.experts.children():
            linear.weight = nn.Parameter(linear.weight.data.repeat(n_experts, 1, 1))
        wide = {"d_ff": n_shared * self.experts.d_ff, "expansion": None}
        self.shared = make_mlp(expert | wide) if n_shared else None

    def forward(self, x: Tensor) -> Tensor:
        logits_BTX = self.router(x)
        probs_BTX = logits_BTX.softmax(-1, dtype=exact_dtype(logits_BTX))
        weights, chosen = probs_BTX.topk(self.top_k)

        if self.top_k > 1:
            weights = weights / weights.sum(-1, keepdim=True)

        # rows sorted by expert, and like the logits in the dtype of matmuls under autocast
        expert, order = chosen.flatten().sort(stable=True)
        counts_X = F.one_hot(expert, probs_BTX.shape[-1]).sum(0)
        self.load_X = counts_X / counts_X.sum() * len(counts_X)
        self.probability_X = probs_BTX.mean((0, 1))
        token = order // self.top_k
        rows_MC = x.flatten(0, 1).type_as(logits_BTX).index_select(0, token)

        y_MC = self.run_experts(rows_MC, counts_X)
        y_MC = y_MC * weights.flatten()[order, None]

        added = torch.zeros_like(x) if self.shared is None else self.shared(x).type_as(x)
        y_BTC = added.flatten(0, 1).index_add(0, token, y_MC.type_as(x)).view_as(x)
        return y_BTC

    def run_experts(self, rows: Tensor, counts: Tensor) -> Tensor:
        """Run the experts on rows sorted by expert: counts[0] for the first, counts[1] for the
        second, and so on."""
        experts = self.experts
        up, out, *gate = (linear.weight.type_as(rows) for linear in experts.children())
        ends = counts.cumsum(0, dtype=torch.int32)
        is_one_kernel = has_grouped_mm(up)
        places: Any = len(up)  # the fake tensors of a dry run have no values: equal groups

        if not is_one_kernel and type(counts) is Tensor:
            places = ends[:-1].tolist()  # waits for the GPU, so only once for all maps

        def multiply(rows: Tensor, stack: Tensor) -> Tensor:
            if is_one_kernel:
                return F.grouped_mm(rows, stack.mT, offs=ends)
            groups = rows.tensor_split(places)
            return torch.cat([group @ own.T for group, own in zip(groups, stack, strict=True)])

        hidden = multiply(rows, up)
        if gate:
            hidden = experts.activation(multiply(rows, *gate)) * hidden
        else:
            hidden = experts.activation(hidden)
        return multiply(hidden, out)

    @property
    def n_inactive(self) -> int:
        """The number of parameters that a token does not use."""
        total = sum(stack.numel() for stack in self.experts.parameters())
        n_experts = len(self.experts.up.weight)
        return total // n_experts * (n_experts - self.top_k)

    def losses(self) -> dict[str, Tensor]:
        """balance_loss times n_experts * sum(fraction of the choices * mean probability), which is
        1 if all experts are used equally (arxiv.org/abs/2101.03961). Both are over one micro-batch:
        the term changes with its size, but not with the number of processes that share the same
        micro-batches. Padding counts like any token, because no mask is passed in."""
        if not self.balance_loss:
            return {}
        return {"balance": self.balance_loss * (self.load_X * self.probability_X).sum()}


MLPS = dict(FFNS)  # all but the mixture: no expert is one
FFNS["moe"] = MixtureOfExperts
