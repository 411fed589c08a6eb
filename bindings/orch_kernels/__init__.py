"""Fast dropout, attention, activations, layers, losses and Adam for training on CPUs, in place of torch's.

    import orch_kernels

    orch_kernels.use()  # after `import transformers`, before the training

From then on torch.nn.functional.dropout, torch.nn.Dropout and torch.nn.functional.scaled_dot_product_attention, and
what calls them, such as torch.nn.MultiheadAttention and the models of transformers, compute with vectorized kernels
when they train with plain CPU tensors in eager mode. On CPUs with AMX, so do torch.nn.functional.linear,
torch.nn.Linear and torch.addmm of layers under autocast to BF16, also in evaluation. GELU and SiLU, and the hyperbolic
tangent of BF16 tensors, are vectorized on CPUs with AVX2 or AVX-512, also in evaluation. On CPUs of AMD, torch.mm,
torch.addmm and layers multiply FP32 matrices with oneDNN in place of MKL. torch.nn.functional.cross_entropy of
many classes stores nothing of the logits' size but their gradient. torch.optim.Adam and AdamW update FP32 parameters as
with `fused=True`. Everything else is left to torch. Results are those of torch within rounding. Which units are dropped
differs, although the same generator is used: torch.manual_seed and saved random states determine them.
"""

from __future__ import annotations

import importlib
import sys

import torch

from orch_kernels import adam, attention, cross_entropy, dropout, library, linear, models
from orch_kernels.attention import attention_of_packed
from orch_kernels.models import replace as replace_in_models

__all__ = ["attention_of_packed", "is_in_use", "problem", "replace_in_models", "restore", "use"]


def use() -> None:
    """Replace torch's functions, and those of transformers' models if it has been imported.

    Modules that have already executed `from torch.nn.functional import dropout` keep torch's function.

    Raises:
        RuntimeError: if the kernels are not available.
    """
    if reason := problem():
        raise RuntimeError(f"orch_kernels: {reason}.")
    torch.nn.functional.dropout = dropout.dropout
    torch.ops.orch.replace_products(True)
    torch.ops.orch.replace_activations(True)
    adam.replace()
    torch.jit._builtins._register_builtin(cross_entropy.cross_entropy_loss, "aten::cross_entropy_loss")
    torch._C._nn.cross_entropy_loss = cross_entropy.cross_entropy_loss
    if torch.ops.orch.linear_is_fast():
        torch.jit._builtins._register_builtin(linear.linear, "aten::linear")
        torch.jit._builtins._register_builtin(linear.addmm, "aten::addmm")
        torch.nn.functional.linear = linear.linear
        torch.addmm = linear.addmm
    if torch.ops.orch.attention_is_fast():
        torch.jit._builtins._register_builtin(
            attention.scaled_dot_product_attention, "aten::scaled_dot_product_attention"
        )
        torch.nn.functional.scaled_dot_product_attention = attention.scaled_dot_product_attention
        if "transformers" in sys.modules:
            models.replace(importlib.import_module("transformers.modeling_utils"))


def restore() -> None:
    """Restore torch's functions."""
    if is_in_use():
        torch.ops.orch.replace_products(False)
        torch.ops.orch.replace_activations(False)
    adam.restore()
    torch._C._nn.cross_entropy_loss = cross_entropy.TORCHS
    torch.nn.functional.dropout = dropout.TORCHS
    torch.nn.functional.linear = linear.TORCHS
    torch.addmm = linear.TORCHS_ADDMM
    torch.nn.functional.scaled_dot_product_attention = attention.TORCHS


def is_in_use() -> bool:
    """Return whether torch's dropout is replaced."""
    return torch.nn.functional.dropout is dropout.dropout


def problem() -> str | None:
    """Load the kernels, and return why they cannot be used, or None."""
    return library.load()
