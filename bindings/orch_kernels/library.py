"""Load the kernels' library, and find out which tensors they support."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import torch
from torch.autograd import forward_ad

from orch_kernels._built import TORCH

DTYPES = (torch.float32, torch.bfloat16, torch.float16, torch.float64)
KINDS = (torch.Tensor, torch.nn.Parameter)
MODE_KEYS = getattr(torch._C, "_TorchDispatchModeKey", None)  # torch 2.0 and 2.1 have none


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
    """Return whether these are plain CPU tensors, outside of compilation, tracing and transformations."""
    return (
        not torch.compiler.is_compiling()
        and all(map(is_plain, tensors))
        and torch._C._get_tracing_state() is None
        and torch._C._functorch.peek_interpreter_stack() is None
        and not is_traced()
        and forward_ad._current_level < 0
    )


def is_traced() -> bool:
    """Return whether make_fx() or fake tensors trace; other dispatch modes see the kernels as operators.

    Modes may be active in the forward pass alone: checkpointed modules must draw the same units again without them.
    """
    if torch._C._len_torch_dispatch_stack() == 0:
        return False
    if MODE_KEYS is None:
        return True
    keys = (MODE_KEYS.FAKE, MODE_KEYS.PROXY, MODE_KEYS.FUNCTIONAL)
    return any(torch._C._get_dispatch_mode(key) is not None for key in keys)


def is_plain(tensor: torch.Tensor) -> bool:
    return (
        type(tensor) in KINDS
        and tensor.device.type == "cpu"
        and tensor.layout == torch.strided
        and not tensor.is_nested
        and not tensor.is_neg()  # such as imag() of conj(), whose memory has the opposite signs
    )
