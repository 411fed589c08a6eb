"""torch.nn.functional.dropout with the vectorized kernel."""

from __future__ import annotations

import torch
from torch.overrides import handle_torch_function, has_torch_function_unary

from orch_kernels.library import DTYPES, are_plain

TORCHS = torch.nn.functional.dropout


def dropout(input: torch.Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> torch.Tensor:
    """Compute torch's function of this name with the kernel, or with torch if the kernel does not support the input."""
    if torch.jit.is_scripting():
        return torch.dropout_(input, p, training) if inplace else torch.dropout(input, p, training)
    else:
        if has_torch_function_unary(input):
            return handle_torch_function(dropout, (input,), input, p=p, training=training, inplace=inplace)
        if training and 0 < p < 1 and are_plain(input) and input.dtype in DTYPES:
            dropped = torch.ops.orch.dropout(input, p)
            return input.copy_(dropped) if inplace else dropped
        return TORCHS(input, p, training, inplace)


dropout.__module__ = "torch.nn.functional"  # Pickled modules name torch's function, which other processes have.
