"""Fine-tune for question answering as bert-qa does, then quantize to int8 and compare.

The evaluation is divided among the ranks; rank 0 calibrates and compiles, and every node receives the file.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

sys.path.append(str(Path(__file__).resolve().parents[2] / "lib"))  # for orch_training
sys.path.append(str(Path(__file__).resolve().parents[1] / "bert_qa"))

from orch_training import speed_up_imports

speed_up_imports()

import torch
from config import Config, QaArguments, parse_arguments
from evaluation import Evaluator
from int8 import Quantized, compiled, largest_difference, prepared
from orch_training import RecipeError, checkpoint, ranks
from orch_training.arguments import neutral
from orch_training.metrics import Progress
from orch_training.resume import prepare_output
from orch_training.script import run_script, save_model, write_results
from run_qa import load, train_model
from squad import Window
from transformers import AutoModelForQuestionAnswering

PACKAGE = "model.pt2"
MB = 1e6
MEASURED_BATCHES, ROUNDS = 4, 5


@dataclass
class QuantArguments(QaArguments):
    """The arguments of this recipe that run_qa.py does not have."""

    apply_quantization: bool = neutral(True, "Quantize the model after training.")
    quantization_approach: Literal["static", "dynamic"] = neutral("static", "When ranges of activations are measured.")
    num_calibration_samples: int = neutral(50, "Windows for the calibration of a static quantization.")
    verify_loading: bool = neutral(False, "Load the model in a fresh process and compare the logits.")
    verify_tolerance: float = neutral(1e-4, "Maximum difference of a logit.")

    def rules(self, training: Any) -> list[tuple[bool, str]]:
        return [
            *super().rules(training),
            (self.verify_tolerance <= 0, "--verify_tolerance must be over 0."),
            (self.apply_quantization and not training.do_eval, "--apply_quantization needs --do_eval."),
        ]


def run(config: Config) -> None:
    """Fine-tune and quantize a model, then compare its precisions."""
    quant: QuantArguments = config.args
    # ranks: accelerate joins them here unless they have joined already
    _ = config.training.device
    output_dir = Path(config.training.output_dir)
    prepare_output(output_dir)

    # data, model: int8 ranges come from training data even if nothing is trained
    windows, model, evaluator = load(config, quant.num_calibration_samples)

    # loop
    summary: dict[str, Any] = {"world_size": ranks.world_size(), "output_dir": str(output_dir)}
    if config.training.do_train:
        summary |= train_model(config, model, windows, evaluator)

    # quantize
    save_model(model, evaluator.tokenizer, output_dir / "model")
    count = sum(p.numel() for p in model.parameters())
    models, sizes = {"fp32": model, "bf16": model}, {"fp32": count * 4 / MB, "bf16": count * 2 / MB}
    if quant.apply_quantization:
        began, package = time.perf_counter(), output_dir / "quantized" / PACKAGE
        quantize(quant, package, evaluator, model, windows[: quant.num_calibration_samples])
        summary["quantize_seconds"] = round(time.perf_counter() - began, 3)
        sample = evaluator.inputs(windows[:4])
        if quant.verify_loading:
            summary["loading"] = verified(package, sample, quant.verify_tolerance)
        models["int8"], sizes["int8"] = Quantized(package, [*sample]), package.stat().st_size / MB

    # compare
    results: dict[str, dict[str, float]] = {}
    if config.training.do_eval:
        size = config.training.per_device_eval_batch_size
        starts = range(0, min(len(windows), MEASURED_BATCHES * size), size)
        speed = speeds(models, [evaluator.inputs(windows[start : start + size]) for start in starts])
        for name, precise in models.items():
            config.training.bf16 = name == "bf16"
            scores = evaluator.evaluate(precise, f"evaluate {name}").scores
            results[name] = {**scores, "windows_per_second": speed[name], "size_mb": sizes[name]}
    summary["precisions"] = results
    summary["after"] = {f"{score}, {name}": figures[score] for name, figures in results.items() for score in figures}
    write_results(output_dir, summary, units={"em": "%", "f1": "%"})


def verified(package: Path, inputs: dict[str, Any], tolerance: float) -> dict[str, float | None]:
    """Compare the logits of the saved int8 model in this process with those in a fresh process.

    Raises:
        RecipeError: if they differ by more than the tolerance, or the model cannot be loaded.
    """
    difference = None
    with ranks.raise_together():
        if ranks.is_main():
            difference = largest_difference(package, inputs)
            if not difference <= tolerance:
                limit = f"--verify_tolerance {tolerance:g}"
                raise RecipeError(f"{package}: loaded anew, logits are off by {difference:.2g}, over {limit}.")
            ranks.note(f"loaded in a fresh process: logits differ by {difference:.2g} at most.")
    return dict(ranks.from_main({"difference": difference, "tolerance": tolerance}))


def speeds(models: Mapping[str, Any], batches: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Return the windows per second over all ranks: the best of several rounds after a warm-up.

    The models are measured in turns, so that a busy machine slows all of them alike. The model with the name "bf16"
    runs under autocast.
    """
    best = dict.fromkeys(models, float("inf"))
    progress = Progress("measure speed", ROUNDS)
    for number in range(ROUNDS + 1):
        for name, model in models.items():
            model.eval()
            ranks.gather(None)  # barrier: all ranks begin at the same time
            with torch.inference_mode(), torch.autocast("cpu", torch.bfloat16, enabled=name == "bf16"):
                began = time.perf_counter()
                for batch in batches:
                    model(**batch)
            if number:
                best[name] = min(best[name], time.perf_counter() - began)
        progress.report(number)
    windows = sum(len(batch["input_ids"]) for batch in batches)
    return {name: round(sum(ranks.gather(windows / best[name])), 3) for name in models}


def quantize(quant: QuantArguments, package: Path, evaluator: Evaluator, model: Any, windows: Sequence[Window]) -> None:
    """Quantize and compile the model on rank 0, and write it to the package on every node.

    Raises:
        RecipeError: if the nodes have different kinds of CPUs, for which there is no common machine code.
    """
    capabilities = sorted(set(ranks.gather(torch.backends.cpu.get_cpu_capability())))
    if len(capabilities) > 1:
        reason = f"int8 code is made for one kind of CPU, and the nodes have {capabilities}."
        raise RecipeError(f"{reason} Choose nodes that are alike (--nodes).")
    owner, names = ranks.owns(package.parent), [*evaluator.inputs(windows[:1])]
    with ranks.raise_together():
        if ranks.is_main():
            dynamic = quant.quantization_approach == "dynamic"
            trained = package.parents[1] / "model"
            eager = AutoModelForQuestionAnswering.from_pretrained(trained, attn_implementation="eager")
            graph = prepared(eager, names, dynamic=dynamic, longest=evaluator.max_length)
            # With dynamic quantization, only the weights need ranges here: each call measures the activations.
            size = max(2, evaluator.config.training.per_device_eval_batch_size)
            starts = range(0, 1 if dynamic else len(windows), size)
            # At least two samples, because the graph is exported for two or more rows.
            calibrate(graph, [evaluator.inputs([*windows[start : start + size], windows[start]]) for start in starts])
            Progress("compile int8", 1).report(0, now=True)
            compiled(graph, names, evaluator.max_length, package)
            Progress("compile int8", 1).report(1, now=True)
    content = ranks.broadcast_bytes(0, package.read_bytes() if ranks.is_main() else b"")
    with ranks.raise_together():
        if owner and not ranks.is_main():
            package.write_bytes(content)
        if owner:
            evaluator.tokenizer.save_pretrained(package.parent)
            model.config.save_pretrained(package.parent)
            checkpoint.seal(package.parent, approach=quant.quantization_approach, inputs=names)


def calibrate(graph: Any, batches: Sequence[Mapping[str, Any]]) -> None:
    """Run batches through the observers."""
    progress = Progress("calibrate", len(batches))
    with torch.no_grad():
        for number, batch in enumerate(batches, start=1):
            graph(*batch.values())
            progress.report(number, now=number == len(batches))


if __name__ == "__main__":
    sys.exit(run_script(lambda: run(parse_arguments(sys.argv[1:], QuantArguments))))
