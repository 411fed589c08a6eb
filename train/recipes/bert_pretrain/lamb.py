"""LAMB: layer-wise adaptive moments for large batches (You et al. 2019, arXiv:1904.00962).

Follows NVIDIA's FusedLAMB: gradients are clipped by their global norm, moments are corrected for
their bias towards zero, and the trust ratio applies to parameters with weight decay.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch.optim import Optimizer

NO_DECAY = ("bias", "LayerNorm.weight")


class Lamb(Optimizer):
    """The LAMB optimizer."""

    def __init__(
        self,
        groups: Iterable[dict[str, Any]],
        *,
        lr: float,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-6,
        max_grad_norm: float = 1.0,
    ) -> None:
        self.max_grad_norm = max_grad_norm
        super().__init__(groups, {"lr": lr, "betas": betas, "eps": eps, "weight_decay": 0.0})

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        """Clip the gradients and update all parameters."""
        assert closure is None
        parameters = [p for group in self.param_groups for p in group["params"] if p.grad is not None]
        if self.max_grad_norm:
            torch.nn.utils.clip_grad_norm_(parameters, self.max_grad_norm)
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    self.update(parameter, group)

    def update(self, parameter: Any, group: dict[str, Any]) -> None:
        """Update a parameter and its moments."""
        state, (beta1, beta2) = self.state[parameter], group["betas"]
        if not state:
            state["step"] = 0
            state["mean"] = torch.zeros_like(parameter)
            state["square"] = torch.zeros_like(parameter)
        state["step"] += 1
        mean = state["mean"].lerp_(parameter.grad, 1 - beta1)
        square = state["square"].mul_(beta2).addcmul_(parameter.grad, parameter.grad, value=1 - beta2)
        root = (square / (1 - beta2 ** state["step"])).sqrt_().add_(group["eps"])
        update = (mean / (1 - beta1 ** state["step"])).div_(root)
        ratio = 1.0
        if group["weight_decay"]:
            update.add_(parameter, alpha=group["weight_decay"])
            ratio = trust(parameter, update)
        parameter.add_(update, alpha=-group["lr"] * ratio)


def trust(parameter: Any, change: Any) -> float:
    """Return the trust ratio: the norm of the parameter over that of its update."""
    parameter_norm, change_norm = float(parameter.norm()), float(change.norm())
    return parameter_norm / change_norm if parameter_norm > 0 and change_norm > 0 else 1.0


def groups_of(model: torch.nn.Module, weight_decay: float) -> list[dict[str, Any]]:
    """Divide the parameters into those with weight decay, and biases and LayerNorm weights without."""
    decayed: list[Any] = []
    undecayed: list[Any] = []
    for name, parameter in model.named_parameters():
        (undecayed if name.endswith(NO_DECAY) else decayed).append(parameter)
    return [{"params": decayed, "weight_decay": weight_decay}, {"params": undecayed, "weight_decay": 0.0}]
