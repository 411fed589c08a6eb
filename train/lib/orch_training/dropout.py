"""Dropout with the vectorized kernel of orch's bindings instead of torch's.

    from orch_training import dropout

    dropout.use_kernel()  # from now on for torch.nn.Dropout and torch.nn.functional.dropout

Statistics, scaling and gradients are the same as torch's. Other units are dropped, but from the same generator, so that
torch.manual_seed and saved random states determine them.
"""

from __future__ import annotations

import importlib.util
import socket
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from torch.autograd import forward_ad

from orch_training import checkpoint, ranks
from orch_training.errors import RecipeError

PACKAGE = "oneccl_bindings_for_pytorch"
LIBRARY = "_dropout"
DTYPES = (torch.float32, torch.bfloat16, torch.float16, torch.float64)
KINDS = (torch.Tensor, torch.nn.Parameter)
TORCHS = torch.nn.functional.dropout
LOADED: set[Path] = set()
FACT = "dropout"  # in a checkpoint's manifest
MEASURED_ELEMENTS, MEASURED_CALLS = 1 << 18, 5  # about 10 ms in all on one core


def use_kernel() -> None:
    """Replace torch's dropout with the kernel.

    Modules that have already executed `from torch.nn.functional import dropout` keep torch's.

    Raises:
        RecipeError: if the kernel is not available.
    """
    if problem := problem_with_kernel():
        raise RecipeError(f"dropout by the kernel: {problem}.")
    torch.nn.functional.dropout = dropout


def use_torchs() -> None:
    torch.nn.functional.dropout = TORCHS


def dropout(input: torch.Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> torch.Tensor:
    """Compute torch.nn.functional.dropout with the kernel, or with torch if the kernel does not support the input."""
    if torch.jit.is_scripting():
        return torch.dropout_(input, p, training) if inplace else torch.dropout(input, p, training)
    else:
        if not (training and 0 < p < 1 and is_supported(input)):
            return TORCHS(input, p, training, inplace)
        dropped = torch.ops.orch.dropout(input, p)
        return input.copy_(dropped) if inplace else dropped


def is_supported(input: torch.Tensor, dtypes: Sequence[torch.dtype] = DTYPES) -> bool:
    """Return whether the input is a plain CPU tensor outside of tracing and transformations."""
    return (
        type(input) in KINDS
        and input.device.type == "cpu"
        and input.layout == torch.strided
        and input.dtype in dtypes
        and not torch.compiler.is_compiling()
        and torch._C._get_tracing_state() is None
        and torch._C._functorch.peek_interpreter_stack() is None
        and forward_ad._current_level < 0
    )


def problem_with_kernel(name: str = LIBRARY) -> str | None:
    """Load a kernel's library, and return why it cannot be used, or None."""
    spec = importlib.util.find_spec(PACKAGE)
    folder = Path(spec.origin).parent if spec and spec.origin else None
    library = next(folder.glob(f"{name}.*.so"), None) if folder else None
    if library is None:
        return f"{PACKAGE} does not contain it" if folder else f"{PACKAGE} is not installed"
    if library in LOADED:
        return None
    built, installed = built_for(library.parent), torch.__version__.split("+")[0]
    if built != installed:
        return f"it was built for torch {built}, not {installed}"
    try:
        torch.ops.load_library(library)
    except OSError as error:
        return f"{library.name} cannot be loaded ({error.__cause__ or error})"
    LOADED.add(library)
    return None


def built_for(folder: Path) -> str:
    """Return the torch version of the bindings without importing them, which would load MPI and register ccl."""
    lines = (folder / "_built.py").read_text().splitlines()
    return next((line.split('"')[1] for line in lines if line.startswith("TORCH = ")), "")


@dataclass(frozen=True)
class Measurement:
    """The speed of dropout on one rank.

    Attributes:
        host: the rank's host name.
        problem: why the kernel cannot be used there, or None.
        torch_seconds: the time of torch's dropout of one tensor.
        kernel_seconds: the time of the kernel for the same tensor.
    """

    host: str
    problem: str | None
    torch_seconds: float = 0.0
    kernel_seconds: float = 0.0


def measure() -> Measurement:
    """Measure both implementations on this rank, without a change to torch's random state."""
    problem = problem_with_kernel()
    if problem:
        return Measurement(socket.gethostname(), problem)
    tensor = torch.ones(MEASURED_ELEMENTS)
    with torch.random.fork_rng(devices=[]):
        return Measurement(
            socket.gethostname(),
            None,
            torch_seconds=shortest_time(lambda: TORCHS(tensor, 0.1)),
            kernel_seconds=shortest_time(lambda: dropout(tensor, 0.1)),
        )


def shortest_time(call: Callable[[], object]) -> float:
    """Return the seconds of the fastest of several calls, which other load disturbs least."""
    seconds = []
    for _ in range(MEASURED_CALLS):
        began = time.perf_counter()
        call()
        seconds.append(time.perf_counter() - began)
    return min(seconds)


def settle(requested: str, start: Path | None = None) -> str:
    """Choose the same implementation on all ranks and describe the choice with its reason.

    A run that resumes from the checkpoint `start` keeps the implementation that wrote it: another
    one would draw other masks.

    Raises:
        RecipeError: if the kernel was requested and a node does not have it.
    """
    recorded = ranks.from_main(checkpoint.facts_of(start).get(FACT) if start else None)
    kernel, reason = choose(requested, [Measurement(**fields) for fields in ranks.gather(asdict(measure()))], recorded)
    if kernel:
        use_kernel()
    else:
        use_torchs()
    return f"{selected()} ({reason})"


def selected() -> str:
    """Return the implementation in use, "kernel" or "torch", as checkpoints record it."""
    return "kernel" if torch.nn.functional.dropout is dropout else "torch"


def choose(requested: str, measurements: Sequence[Measurement], recorded: object = None) -> tuple[bool, str]:
    """Return whether to use the kernel, and the reason; the slowest rank counts."""
    lacking = next((rank for rank in measurements if rank.problem), None)
    if requested == "torch":
        return False, "as requested"
    if lacking and requested == "kernel":
        text = f"--dropout_kernel kernel: not on {lacking.host}: {lacking.problem}."
        raise RecipeError(text, shared=True)
    if requested == "kernel":
        return True, "as requested"
    if lacking:
        return False, f"no kernel on {lacking.host}: {lacking.problem}"
    if recorded in ("kernel", "torch"):
        return recorded == "kernel", "as in the checkpoint"
    torch_seconds = max(rank.torch_seconds for rank in measurements)
    kernel_seconds = max(rank.kernel_seconds for rank in measurements)
    if kernel_seconds < torch_seconds:
        return True, f"{torch_seconds / kernel_seconds:.1f} times as fast as torch's here"
    return False, f"{kernel_seconds / torch_seconds:.1f} times as fast as the kernel here"
