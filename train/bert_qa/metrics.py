"""Follows the training: events for the supervisor, a JSON-lines file, TensorBoard, one text line.

A line of metrics.jsonl has step, epoch, loss, learning_rate, samples_per_second and time (Unix).
The loss is the mean over all ranks and over the steps since the line before.
"""

from __future__ import annotations

import importlib
import json
import time
import warnings
from pathlib import Path
from typing import Any

import ranks
from checkpoint import flush
from events import Progress, note
from transformers import TrainerCallback

FILE = "metrics.jsonl"


class TrainingMetrics(TrainerCallback):  # type: ignore[misc]
    """On every rank; only rank 0 writes. `samples_per_step` counts all ranks."""

    def __init__(self, output_dir: Path, samples_per_step: int, start_step: int) -> None:
        self.samples_per_step = samples_per_step
        self.start_step = start_step
        self.progress = Progress("train", 0)
        self.writers: list[Any] = []
        if ranks.is_main():
            self.writers = [JsonLines(output_dir / FILE, start_step)]
            self.writers += tensorboard(output_dir / "tensorboard", start_step)
        self.seconds = 0.0
        self.final_loss: float | None = None
        self.logged_step = start_step
        self.began = self.logged_at = time.perf_counter()

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.progress = Progress("train", state.max_steps)
        self.began = self.logged_at = time.perf_counter()
        self.progress.tell(state.global_step, now=True)

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> Any:
        """Log at each checkpoint and at the end, so that a resumed run averages the same steps."""
        if control.should_save or state.global_step >= state.max_steps:
            control.should_log = True
        if not (control.should_log and ranks.is_main()):
            self.progress.tell(state.global_step, now=bool(control.should_log))
        self.seconds = time.perf_counter() - self.began
        done = (state.global_step - self.start_step) * self.samples_per_step
        note(step=state.global_step, samples=done // ranks.world_size())
        return control

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **kwargs: Any) -> None:
        if not logs or "loss" not in logs:  # the summary at the end
            return
        self.final_loss = logs["loss"]
        line = self.line(state.global_step, state.epoch, logs)
        if ranks.is_main():
            for writer in self.writers:
                writer.write(line)
            print(shown(line, state.max_steps), flush=True)
            self.progress.tell(
                state.global_step,
                now=True,
                **{name: line[name] for name in ("loss", "learning_rate", "samples_per_second")},
            )

    def line(self, step: int, epoch: float, logs: dict[str, Any]) -> dict[str, Any]:
        now = time.perf_counter()
        samples = (step - self.logged_step) * self.samples_per_step
        speed = samples / (now - self.logged_at)
        self.logged_step, self.logged_at = step, now
        return {
            "step": step,
            "epoch": round(epoch, 4),
            "loss": logs["loss"],
            "learning_rate": logs["learning_rate"],
            "samples_per_second": round(speed, 3),
            "time": round(time.time(), 3),
        }

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        for writer in self.writers:
            writer.close()

    def samples_per_second(self, last_step: int) -> float:
        """Of this process' steps, with everything between them (also checkpoints)."""
        return (last_step - self.start_step) * self.samples_per_step / max(self.seconds, 1e-9)


def shown(line: dict[str, Any], steps: int) -> str:
    return (
        f"step {line['step']}/{steps}  loss {line['loss']:.4f}  lr {line['learning_rate']:.2e}  "
        f"{line['samples_per_second']:.1f} samples/s"
    )


class JsonLines:
    """Appends; on a start at step N the lines after N go, and so does a torn last line."""

    def __init__(self, path: Path, start_step: int) -> None:
        kept = [line for line in readable_lines(path) if json.loads(line)["step"] <= start_step]
        staged = path.with_name(f".{path.name}.tmp")
        staged.write_text("".join(line + "\n" for line in kept if start_step))
        flush(staged)
        staged.replace(path)
        self.file = path.open("a", encoding="utf-8")

    def write(self, line: dict[str, Any]) -> None:
        self.file.write(json.dumps(line) + "\n")
        self.file.flush()

    def close(self) -> None:
        self.file.close()


def readable_lines(path: Path) -> list[str]:
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    return [line for line in lines if is_metrics(line)]


def is_metrics(line: str) -> bool:
    try:
        return isinstance(json.loads(line)["step"], int)
    except (ValueError, KeyError, TypeError):
        return False


class TensorBoard:
    def __init__(self, writer: Any) -> None:
        self.writer = writer

    def write(self, line: dict[str, Any]) -> None:
        for name in ("loss", "learning_rate", "samples_per_second"):
            self.writer.add_scalar(f"train/{name}", line[name], line["step"])
        self.writer.flush()

    def close(self) -> None:
        self.writer.close()


def tensorboard(folder: Path, start_step: int) -> list[TensorBoard]:
    """Later steps of an earlier process are hidden (purge_step)."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)
            module = importlib.import_module("torch.utils.tensorboard")
    except ImportError:
        ranks.note("no TensorBoard files are written: the package `tensorboard` is not installed.")
        return []
    return [TensorBoard(module.SummaryWriter(str(folder), purge_step=start_step + 1))]
