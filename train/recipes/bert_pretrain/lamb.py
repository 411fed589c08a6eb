"""LAMB: layer-wise adaptive moments for large batches (You et al. 2019, arXiv:1904.00962).

As NVIDIA's FusedLAMB does it: gradients are cut by their common norm, moments are corrected for
their start at zero, and the trust ratio is for what has weight decay.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch.optim import Optimizer

NO_DECAY = ("bias", "LayerNorm.weight")


class Lamb(Optimizer):
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
        assert closure is None
        every = [p for group in self.param_groups for p in group["params"] if p.grad is not None]
        if self.max_grad_norm:
            torch.nn.utils.clip_grad_norm_(every, self.max_grad_norm)
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    self.update(parameter, group)

    def update(self, parameter: Any, group: dict[str, Any]) -> None:
        state, (beta1, beta2) = self.state[parameter], group["betas"]
        if not state:
            state["step"] = 0
            state["mean"] = torch.zeros_like(parameter)
            state["square"] = torch.zeros_like(parameter)
        state["step"] += 1
        mean = state["mean"].lerp_(parameter.grad, 1 - beta1)
        square = state["square"].mul_(beta2).addcmul_(parameter.grad, parameter.grad, value=1 - beta2)
        root = (square / (1 - beta2 ** state["step"])).sqrt_().add_(group["eps"])
        change = (mean / (1 - beta1 ** state["step"])).div_(root)
        ratio = 1.0
        if group["weight_decay"]:
            change.add_(parameter, alpha=group["weight_decay"])
            ratio = trust(parameter, change)
        parameter.add_(change, alpha=-group["lr"] * ratio)


def trust(parameter: Any, change: Any) -> float:
    """How far a layer may move: in proportion to its own length."""
    length, step = float(parameter.norm()), float(change.norm())
    return length / step if length > 0 and step > 0 else 1.0


def groups_of(model: torch.nn.Module, weight_decay: float) -> list[dict[str, Any]]:
    """Biases and the weights of LayerNorm do not decay."""
    decays: list[Any] = []
    stays: list[Any] = []
    for name, parameter in model.named_parameters():
        (stays if name.endswith(NO_DECAY) else decays).append(parameter)
    return [{"params": decays, "weight_decay": weight_decay}, {"params": stays, "weight_decay": 0.0}]
