"""A model in int8: torchao's PT2E with the quantizer for x86, compiled ahead by AOTInductor.

The result is one file. It needs neither a compiler nor torchao where it is loaded, so only the rank
that makes it has to have g++.
"""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from orch_training import ranks
from orch_training.errors import RecipeError

BATCH, LENGTH = 2, 64  # of the example that is exported; both may be other numbers later
LARGEST_BATCH = 1024


class Logits(torch.nn.Module):
    """Tensors in, tensors out, in a fixed order."""

    def __init__(self, model: Any, names: Sequence[str]) -> None:
        super().__init__()
        self.model, self.names = model, tuple(names)

    def forward(self, *inputs: Any) -> tuple[Any, Any]:
        output = self.model(**dict(zip(self.names, inputs, strict=True)))
        return output.start_logits, output.end_logits


class Quantized:
    """Called like the model that it was made from."""

    training = False

    def __init__(self, package: Path, names: Sequence[str]) -> None:
        self.call, self.names = torch._inductor.aoti_load_package(str(package)), tuple(names)

    def __call__(self, **inputs: Any) -> SimpleNamespace:
        rows = len(inputs[self.names[0]])
        values = [inputs[name] for name in self.names]
        if rows == 1:  # an exported graph takes "one" for a fixed number, so a row is repeated
            values = [value.repeat(2, 1) for value in values]
        start, end = self.call(*(value.contiguous() for value in values))
        return SimpleNamespace(start_logits=start[:rows], end_logits=end[:rows])

    def eval(self) -> None:
        """Is never anything else."""

    def train(self, mode: bool = True) -> None:
        """Cannot be trained."""


def prepared(model: Any, names: Sequence[str], *, dynamic: bool, longest: int) -> Any:
    """The model as a graph with observers, or (dynamic) with the places where ranges are taken."""
    from torchao.quantization.pt2e.quantize_pt2e import prepare_pt2e
    from torchao.quantization.pt2e.quantizer import x86_inductor_quantizer as x86

    quantizer = x86.X86InductorQuantizer()
    quantizer.set_global(
        x86.get_default_x86_inductor_quantization_config(is_dynamic=dynamic, reduce_range=not has_vnni())
    )
    graph = exported(Logits(model, names).eval(), names, longest).module()
    return prepare_pt2e(graph, quantizer)


def has_vnni() -> bool:
    """Without these instructions, sums of eight-bit products overflow in 16 bits."""
    return bool(torch.cpu._is_vnni_supported())


def exported(module: Any, names: Sequence[str], longest: int) -> Any:
    rows = torch.export.Dim("rows", min=2, max=LARGEST_BATCH)
    tokens = torch.export.Dim("tokens", min=2, max=longest)
    example = tuple(torch.ones((BATCH, min(LENGTH, longest)), dtype=torch.long) for _ in names)
    shapes = tuple({0: rows, 1: tokens} for _ in names)
    with torch.no_grad():
        return torch.export.export(module, example, dynamic_shapes=(shapes,) if isinstance(module, Logits) else shapes)


def merge_observers(graph: Any) -> None:
    """Give all ranks the ranges of all ranks' calibration samples."""
    for module in graph.modules():
        if getattr(module, "histogram", None) is not None:
            merge_histograms(module)


def merge_histograms(observer: Any) -> None:
    mine = (observer.histogram, observer.min_val, observer.max_val)
    parts = [part for part in ranks.gather(mine) if part[0].sum() > 0]
    if not parts:  # no rank has seen it
        return
    counts, low, high = merged(parts)
    observer.histogram.copy_(counts)
    observer.min_val.resize_([]).copy_(torch.tensor(low))
    observer.max_val.resize_([]).copy_(torch.tensor(high))


def merged(parts: Sequence[tuple[Any, Any, Any]]) -> tuple[Any, float, float]:
    """(counts, lowest, highest) of each rank, by the middles of its bins, over the whole range."""
    low = min(float(part[1]) for part in parts)
    high = max(float(part[2]) for part in parts)
    bins = len(parts[0][0])
    total = torch.zeros(bins)
    for counts, least, most in parts:
        width = (float(most) - float(least)) / bins
        middles = float(least) + width * (torch.arange(bins) + 0.5)
        total += torch.histogram(middles, bins, range=(low, high), weight=counts.float()).hist
    return total, low, high


def compiled(graph: Any, names: Sequence[str], longest: int, package: Path) -> None:
    """Convert and compile into one file."""
    if shutil.which("g++") is None:
        raise RecipeError("int8 needs g++ on the first node, where the model is compiled.")
    from torch._inductor import config
    from torchao.quantization.pt2e.quantize_pt2e import convert_pt2e

    with torch.no_grad(), config.patch({"freezing": True}):
        converted = convert_pt2e(graph)
        program = exported(converted, names, longest)
        torch._inductor.aoti_compile_and_package(program, package_path=str(package))


def check_alike() -> None:
    """The file holds machine code."""
    found = ranks.gather(torch.backends.cpu.get_cpu_capability())
    if len(set(found)) > 1:
        raise RecipeError(
            f"int8 code is made for one kind of CPU, and the nodes have {sorted(set(found))}. "
            "Choose nodes that are alike (--nodes).",
            shared=True,
        )
