"""IPEX below accelerate 1.7 and older: used only if asked for, and without losing its weights.

accelerate calls ipex.optimize in prepare(), which packs the weights of linear layers into memory
that the layers compute with, and makes that the memory of their parameters. With a launcher's
LOCAL_RANK in the environment, also on one rank, its device is then not `cpu` but `cpu:0`, and the
model.to(device) after that copies all parameters: the optimizer changes the copies, and the layers
go on computing with what was packed. bert-qa in BF16 on one rank, 30 steps: loss 4.68, where it is
3.03 without IPEX.
"""

from __future__ import annotations

import os

from orch_node.rank.weight_inspection import detached_layers, packed_layers

from orch_training.errors import RecipeError


def settle(use: bool) -> None:
    """Before accelerate makes its first state. Without a word it uses IPEX wherever it is."""
    os.environ["ACCELERATE_TORCH_DEVICE"] = "cpu"
    os.environ["ACCELERATE_USE_IPEX"] = "true" if use else "false"


def check() -> None:
    """After prepare(). Raises RecipeError where layers no longer compute with their weights."""
    layers = packed_layers()
    if apart := detached_layers(layers):
        raise RecipeError(
            f"--use_ipex: {len(apart)} of {len(layers)} layers would not learn, as this accelerate "
            "moves the model after ipex.optimize (30 steps of bert-qa end at a loss of 4.68, where "
            "they end at 3.03 without IPEX). Leave --use_ipex out, which is as fast, or train in "
            "FP32.",
            shared=True,
        )
