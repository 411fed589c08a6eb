"""Dropout by the vectorised kernel that is built with our bindings, in the place of torch's.

    from orch_training import dropout

    dropout.use_kernel()  # torch.nn.Dropout and torch.nn.functional.dropout, from here on

Statistics, scaling and gradients are torch's; which units are dropped is another draw of the same
generator, so that torch.manual_seed, and random states that are saved, decide on it as before.
"""

from __future__ import annotations

import importlib.util
import platform
import socket
from dataclasses import dataclass
from pathlib import Path

import torch
from torch.autograd import forward_ad

from orch_training import ranks
from orch_training.errors import RecipeError

CHOICES = ("auto", "kernel", "torch")
PACKAGE = "oneccl_bindings_for_pytorch"
DTYPES = (torch.float32, torch.bfloat16, torch.float16, torch.float64)
KINDS = (torch.Tensor, torch.nn.Parameter)
TORCHS = torch.nn.functional.dropout
LOADED: set[Path] = set()


def use_kernel() -> None:
    """Raises RecipeError where it is not to be had. Who has `from torch.nn.functional import
    dropout` executed before keeps torch's."""
    if problem := problem_with_kernel():
        raise RecipeError(f"dropout by the kernel: {problem}.")
    torch.nn.functional.dropout = dropout


def use_torchs() -> None:
    torch.nn.functional.dropout = TORCHS


def dropout(
    input: torch.Tensor, p: float = 0.5, training: bool = True, inplace: bool = False
) -> torch.Tensor:
    """torch.nn.functional.dropout; what the kernel is not for goes to torch's own."""
    if torch.jit.is_scripting():
        return torch.dropout_(input, p, training) if inplace else torch.dropout(input, p, training)
    else:
        if not (training and 0 < p < 1 and suits(input)):
            return TORCHS(input, p, training, inplace)
        dropped = torch.ops.orch.dropout(input, p)
        return input.copy_(dropped) if inplace else dropped


def suits(input: torch.Tensor) -> bool:
    """A plain tensor of this CPU that is computed now: no subclass, trace, or transformation."""
    return (
        type(input) in KINDS
        and input.device.type == "cpu"
        and input.layout == torch.strided
        and input.dtype in DTYPES
        and not torch.compiler.is_compiling()
        and torch._C._get_tracing_state() is None
        and torch._C._functorch.peek_interpreter_stack() is None
        and forward_ad._current_level < 0
    )


def problem_with_kernel() -> str | None:
    """Loads it; -> why it cannot be used."""
    spec = importlib.util.find_spec(PACKAGE)
    folder = Path(spec.origin).parent if spec and spec.origin else None
    found = next(folder.glob("_dropout.*.so"), None) if folder else None
    if found is None:
        return f"{PACKAGE} has none" if folder else f"{PACKAGE} is not installed"
    if found in LOADED:
        return None
    built, here = built_for(found.parent), torch.__version__.split("+")[0]
    if built != here:
        return f"it was built for torch {built}, this is {here}"
    try:
        torch.ops.load_library(found)
    except OSError as error:
        return f"{found.name} cannot be loaded ({error.__cause__ or error})"
    LOADED.add(found)
    return None


def built_for(folder: Path) -> str:
    """The torch of the bindings there. Not imported: that would load MPI, and register ccl."""
    lines = (folder / "_built.py").read_text().splitlines()
    return next((line.split('"')[1] for line in lines if line.startswith("TORCH = ")), "")


@dataclass(frozen=True)
class Seen:
    """By one rank."""

    host: str
    problem: str | None
    cpu: str
    mkl: bool


def seen_here() -> Seen:
    cpu = cpu_vendor()
    mkl = cpu == "GenuineIntel" and torch.backends.mkl.is_available()
    return Seen(socket.gethostname(), problem_with_kernel(), cpu, mkl)


def cpu_vendor() -> str:
    """As the kernel names it, else the architecture."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    vendors = (line.split(":")[1].strip() for line in lines if line.startswith("vendor_id"))
    return next(vendors, platform.machine())


def settle(wanted: str) -> str:
    """All ranks take the same; -> which one and why. Raises RecipeError where the kernel was asked
    for by name and a node has none."""
    seen = ranks.gather(seen_here())
    kernel, why = decide(wanted, seen)
    if kernel:
        use_kernel()
    else:
        use_torchs()
    return f"dropout by {'the vectorised kernel' if kernel else 'torch'} ({why})"


def decide(wanted: str, seen: list[Seen]) -> tuple[bool, str]:
    """-> (whether the kernel is taken, why). ATen draws with MKL's vectors if the CPU is Intel's,
    and one number after another on all others: which it is, and not a measurement, decides, so that
    a run that is started again takes the same."""
    lacking = next((one for one in seen if one.problem), None)
    if wanted == "torch":
        return False, "as asked"
    if lacking and wanted == "kernel":
        text = f"--dropout_kernel kernel: not on {lacking.host}: {lacking.problem}."
        raise RecipeError(text, shared=True)
    if wanted == "kernel":
        return True, "as asked"
    if lacking:
        return False, f"no kernel on {lacking.host}: {lacking.problem}"
    slow = next((one for one in seen if not one.mkl), None)
    if slow is None:
        return False, "it draws with MKL on Intel's CPUs"
    return True, f"on {slow.cpu} torch draws one number after another"
