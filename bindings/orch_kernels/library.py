"""Load the kernels' library, and find out which tensors they support."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import torch
from torch.autograd import forward_ad
from torch.overrides import _get_current_function_mode_stack
from torch.utils._device import DeviceContext

from orch_kernels._built import TORCH

DTYPES = (torch.float32, torch.bfloat16, torch.float16, torch.float64)
KINDS = (torch.Tensor, torch.nn.Parameter)


@cache
def load() -> str | None:
    """Load the library, and return why it cannot be used, or None."""
    installed = torch.__version__.split("+")[0]
    if installed != TORCH:
        return f"they were built for torch {TORCH}, not {installed}"
    path = next(Path(__file__).parent.glob("_kernels.*.so"), None)
    if path is None:
        return f"{Path(__file__).parent} does not contain _kernels"
    try:
        torch.ops.load_library(path)
    except OSError as error:
        return f"{path.name} cannot be loaded ({error.__cause__ or error})"
    return None


def are_plain(*tensors: torch.Tensor) -> bool:
    """Return whether these are plain CPU tensors, outside of compilation, tracing, transformations and modes."""
    return (
        not torch.compiler.is_compiling()
        and all(map(is_plain, tensors))
        and torch._C._get_tracing_state() is None
        and torch._C._functorch.peek_interpreter_stack() is None
        and not has_function_mode()
        and torch._C._len_torch_dispatch_stack() == 0
        and forward_ad._current_level < 0
    )


def has_function_mode() -> bool:
    """Return whether a TorchFunctionMode is active, except torch.device(), which affects only new tensors.

    It may be active in the forward pass alone. Checkpointed modules must draw the same units again without it.
    """
    return any(type(mode) is not DeviceContext for mode in _get_current_function_mode_stack())


def is_plain(tensor: torch.Tensor) -> bool:
    return (
        type(tensor) in KINDS
        and tensor.device.type == "cpu"
        and tensor.layout == torch.strided
        and not tensor.is_nested
    )
