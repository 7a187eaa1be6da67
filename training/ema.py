"""EMA: an exponential moving average of the weights, which is evaluated and sampled from."""

import torch
from torch import nn

from model.weights import trained_parameters


class EMA:
    """Averages the trained weights."""

    def __init__(self, model: nn.Module, decay: float):
        self.decay = decay
        self.weights = trained_parameters(model)
        self.average = {name: weight.detach().clone() for name, weight in self.weights.items()}

    @torch.no_grad()
    def update(self, step: int) -> None:
        """Update the average after a step. The first steps count less: their weights are far from
        the last."""
        decay = min(self.decay, step / (step + 10))
        averages = list(self.average.values())
        torch._foreach_lerp_(averages, list(self.weights.values()), 1 - decay)

    def swap(self) -> None:
        """Exchange the model's weights and the average, until the next call; without gradients."""
        for name, weight in self.weights.items():
            trained = weight.detach().clone()
            weight.copy_(self.average[name])
            self.average[name].copy_(trained)
