"""torch.nn.functional.linear with the kernel."""

from __future__ import annotations

import torch
from torch.overrides import handle_torch_function, has_torch_function

from orch_kernels.library import are_plain

TORCHS = torch.nn.functional.linear
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
    if (
        torch.is_autocast_enabled("cpu")
        and torch.get_autocast_dtype("cpu") == torch.bfloat16
        and is_supported(input, weight, bias)
    ):
        return torch.ops.orch.linear(input, weight, bias)
    return TORCHS(input, weight, bias)


linear.__module__ = "torch.nn.functional"  # Pickled modules name torch's function, which other processes have.


def is_supported(input: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> bool:
    """Return whether the kernel computes this layer, and is not slower than torch."""
    rows = ROWS if torch.is_grad_enabled() else ROWS_IN_EVALUATION
    parameters = [weight] if bias is None else [weight, bias]
    return (
        are_plain(input, *parameters)
        and torch._C._len_torch_dispatch_stack() == 0  # modes see torch's products
        and torch.ops.orch.linear_is_fast()  # not if torch.backends.mkldnn is disabled
        and (input.requires_grad or weight.requires_grad)
        and input.dtype in (torch.float32, torch.bfloat16)
        and all(parameter.dtype == torch.float32 and parameter.is_contiguous() for parameter in parameters)
        and weight.dim() == 2
        and input.dim() > 1
        and input.shape[-1] == weight.shape[1]
        and weight.shape[0] % MULTIPLE == weight.shape[1] % MULTIPLE == 0
        and input.numel() >= rows * weight.shape[1] > 0
        and (bias is None or bias.shape == weight.shape[:1])
    )
