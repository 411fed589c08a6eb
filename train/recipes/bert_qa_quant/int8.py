"""Quantize a model to int8 with torchao's PT2E for x86 and compile it with AOTInductor.

The result is a single file. Loading it needs neither a compiler nor torchao, so that only the rank
that compiles it needs g++. `int8.py PACKAGE LOGITS` loads it in a fresh process.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

sys.path.append(str(Path(__file__).resolve().parents[2] / "lib"))  # for orch_training, in a fresh process

import torch
from orch_training import RecipeError

BATCH, LENGTH = 2, 64  # of the exported example; both are dynamic dimensions
LARGEST_BATCH = 1024


class Logits(torch.nn.Module):
    """A model that takes and returns tensors in a fixed order, as exporting needs."""

    def __init__(self, model: Any, names: Sequence[str]) -> None:
        super().__init__()
        self.model, self.names = model, tuple(names)

    def forward(self, *inputs: Any) -> tuple[Any, Any]:
        output = self.model(**dict(zip(self.names, inputs, strict=True)))
        return output.start_logits, output.end_logits


class Quantized(torch.nn.Module):
    """A compiled int8 model that is called like the original one."""

    def __init__(self, package: Path, names: Sequence[str]) -> None:
        super().__init__()
        self.call, self.names = torch._inductor.aoti_load_package(str(package)), tuple(names)

    def forward(self, **inputs: Any) -> SimpleNamespace:
        rows = len(inputs[self.names[0]])
        values = [inputs[name] for name in self.names]
        if rows == 1:  # export treats a size of 1 as constant, so repeat the row
            values = [value.repeat(2, 1) for value in values]
        start, end = self.call(*(value.contiguous() for value in values))
        return SimpleNamespace(start_logits=start[:rows], end_logits=end[:rows])


def prepared(model: Any, names: Sequence[str], *, dynamic: bool, longest: int) -> Any:
    """Return the model as a graph with observers that measure the ranges of values."""
    from torchao.quantization.pt2e.quantize_pt2e import prepare_pt2e
    from torchao.quantization.pt2e.quantizer import x86_inductor_quantizer as x86

    class Quantizer(x86.X86InductorQuantizer):  # type: ignore[misc]
        def annotate(self, graph: Any) -> Any:
            """Leave out sums with integers, such as the positions of RoBERTa, which have no histograms."""
            graph = super().annotate(graph)
            for node in graph.graph.nodes:
                values = [tensor.meta.get("val") for tensor in (node, *node.all_input_nodes)]
                if any(isinstance(value, torch.Tensor) and not value.is_floating_point() for value in values):
                    node.meta.pop("quantization_annotation", None)
            return graph

    quantizer = Quantizer()
    # Without VNNI, 16-bit sums of 8-bit products overflow.
    has_vnni = bool(torch.cpu._is_vnni_supported())
    ranges = x86.get_default_x86_inductor_quantization_config(is_dynamic=dynamic, reduce_range=not has_vnni)
    quantizer.set_global(ranges)
    return prepare_pt2e(exported(Logits(model, names).eval(), names, longest).module(), quantizer)


def exported(module: Any, names: Sequence[str], longest: int) -> Any:
    """Export a module with a dynamic number of rows and tokens."""
    dims = {0: torch.export.Dim("rows", min=2, max=LARGEST_BATCH), 1: torch.export.Dim("tokens", min=2, max=longest)}
    example = tuple(torch.ones((BATCH, min(LENGTH, longest)), dtype=torch.long) for _ in names)
    shapes = (dims,) * len(names)
    with torch.no_grad():
        return torch.export.export(module, example, dynamic_shapes=(shapes,) if isinstance(module, Logits) else shapes)


def compiled(graph: Any, names: Sequence[str], longest: int, package: Path) -> None:
    """Convert a calibrated graph to int8 and compile it into a single file.

    Raises:
        RecipeError: if there is no g++.
    """
    if shutil.which("g++") is None:
        raise RecipeError("int8 needs g++ on the first node, where the model is compiled.")
    from torch._inductor import config
    from torchao.quantization.pt2e.quantize_pt2e import convert_pt2e

    with torch.no_grad(), config.patch({"freezing": True}):
        program = exported(convert_pt2e(graph), names, longest)
        torch._inductor.aoti_compile_and_package(program, package_path=str(package))


def largest_difference(package: Path, inputs: dict[str, Any]) -> float:
    """Return the largest difference of a logit between this process and a fresh one.

    Raises:
        RecipeError: if the fresh process cannot load the model.
    """
    file = package.with_name(".logits.pt")
    output = Quantized(package, list(inputs))(**inputs)
    torch.save({"inputs": inputs, **vars(output)}, file)
    process = subprocess.run([sys.executable, __file__, str(package), str(file)], capture_output=True, text=True)
    file.unlink()
    if process.returncode:
        raise RecipeError(f"{package} cannot be loaded: {process.stderr.strip()[-500:]}")
    return float(process.stdout.split()[-1])


def main(package: Path, file: Path) -> None:
    """Load a model in this process, and print how much its logits differ from those in a file."""
    saved = torch.load(file, weights_only=True)
    output = vars(Quantized(package, list(saved["inputs"]))(**saved["inputs"]))
    print(max(float((logits - saved[name]).abs().max()) for name, logits in output.items()))


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
