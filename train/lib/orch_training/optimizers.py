"""AdamW, by default fused: one pass over the memory instead of a dozen.

accelerate 1.7 and older replace it with IPEX's, which is used only if requested, and only if the layers keep learning.
accelerate calls ipex.optimize in prepare(), which packs the weights of linear layers into memory that the layers
compute with, and that their parameters share. If a launcher sets LOCAL_RANK, even on one rank, accelerate's device is
`cpu:0` instead of `cpu`, and its model.to(device) then copies all parameters: the optimizer updates the copies, while
the layers keep computing with the packed weights. For bert-qa in BF16 on one rank, the loss after 30 steps is 4.68; it
is 3.03 without IPEX.
"""

from __future__ import annotations

import os
from collections.abc import Iterable

import torch
from orch_node.rank.weight_inspection import detached_layers, packed_layers

from orch_training.errors import RecipeError

PLAIN, FUSED = "adamw_torch", "adamw_torch_fused"  # the names of TrainingArguments


def configure_ipex(use: bool, optimizer: str) -> str:
    """Choose whether accelerate uses IPEX, which it otherwise does if it is installed; call this before accelerate.

    Returns:
        The kind of optimizer: `optimizer`, or PLAIN with IPEX, which replaces it with its own fused one.
    """
    os.environ["ACCELERATE_TORCH_DEVICE"] = "cpu"
    os.environ["ACCELERATE_USE_IPEX"] = "true" if use else "false"
    return PLAIN if use else optimizer


def check_ipex() -> None:
    """Raise RecipeError if layers do not compute with their parameters after prepare()."""
    layers = packed_layers()
    if detached := detached_layers(layers):
        raise RecipeError(
            f"--use_ipex: {len(detached)} of {len(layers)} layers would not learn, because this accelerate "
            "moves the model after ipex.optimize (after 30 steps of bert-qa, the loss is 4.68 instead of 3.03). "
            "Omit --use_ipex, which is as fast, or train in FP32.",
            shared=True,
        )


def adamw(parameters: Iterable[torch.nn.Parameter], kind: str, *, lr: float, weight_decay: float) -> torch.optim.AdamW:
    """Return AdamW of kind PLAIN or FUSED."""
    return torch.optim.AdamW(parameters, lr=lr, weight_decay=weight_decay, fused=True if kind == FUSED else None)
