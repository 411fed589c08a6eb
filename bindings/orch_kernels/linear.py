"""torch.nn.functional.linear, and torch.addmm of layers whose weights are transposed, with the kernel."""

from __future__ import annotations

from typing import Any

import torch
from torch.overrides import handle_torch_function, has_torch_function

from orch_kernels.library import are_plain

TORCHS = torch.nn.functional.linear
TORCHS_ADDMM = torch.addmm
MULTIPLE = 32  # of input and output features
# Of the input, from which the kernel is used, with and without gradients: it arranges the weights for each product.
ROWS, ROWS_IN_EVALUATION = 64, 256


def linear(input: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
    """Compute torch's function of this name with the kernel, or with torch if the kernel does not support the input.

    Args:
        input: [..., inputs].
        weight: [outputs, inputs].
        bias: [outputs].
    """
    if has_torch_function(tensors := (input, weight, bias)):
        return handle_torch_function(linear, tensors, *tensors)
    if is_autocast() and is_supported(input, weight, bias):
        return torch.ops.orch.linear(input, weight, bias)
    return TORCHS(input, weight, bias)


linear.__module__ = "torch.nn.functional"  # Pickled modules name torch's function, which other processes have.


def addmm(*args: Any, **kwargs: Any) -> torch.Tensor:
    """Compute torch.addmm, with the kernel for a bias, an input and weights [inputs, outputs], as in GPT-2."""
    if len(args) != 3 or kwargs or not all(isinstance(argument, torch.Tensor) for argument in args):
        return TORCHS_ADDMM(*args, **kwargs)
    if has_torch_function(args):
        return handle_torch_function(addmm, args, *args)
    bias, input, weight = args
    if is_autocast() and input.dim() == 2 and is_supported(input, weight, bias, is_transposed=True):
        return torch.ops.orch.linear(input, weight, bias, is_transposed=True)
    return TORCHS_ADDMM(*args)


addmm.__module__ = "torch"


def is_autocast() -> bool:
    """Return whether autocast to BF16 is on."""
    return torch.is_autocast_enabled("cpu") and torch.get_autocast_dtype("cpu") == torch.bfloat16


def is_supported(
    input: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, *, is_transposed: bool = False
) -> bool:
    """Return whether the kernel computes this layer, and is not slower than torch."""
    rows = ROWS if torch.is_grad_enabled() else ROWS_IN_EVALUATION
    parameters = [weight] if bias is None else [weight, bias]
    if not are_plain(input, *parameters) or weight.dim() != 2 or input.dim() < 2:
        return False
    inputs, outputs = weight.shape if is_transposed else weight.shape[::-1]
    return (
        torch._C._len_torch_dispatch_stack() == 0  # modes see torch's products
        and torch.ops.orch.linear_is_fast()  # not if torch.backends.mkldnn is disabled
        and (input.requires_grad or weight.requires_grad)
        and input.dtype in (torch.float32, torch.bfloat16)
        and all(parameter.dtype == torch.float32 and parameter.is_contiguous() for parameter in parameters)
        and input.shape[-1] == inputs
        and inputs % MULTIPLE == outputs % MULTIPLE == 0
        and input.numel() >= rows * inputs > 0
        and (bias is None or bias.shape == (outputs,))
    )
