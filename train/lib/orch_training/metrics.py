"""The metrics of a training: a JSON-lines file, TensorBoard, a line of text, events.

A line of metrics.jsonl has step, epoch, loss, learning_rate, samples_per_second and time (Unix). The loss is the mean
over all ranks and over the steps since the previous line.
"""

from __future__ import annotations

import importlib
import json
import time
import warnings
from pathlib import Path
from typing import Any

from orch_node import atomic_write
from orch_node.events import note
from orch_node.protocol.events import format_seconds, remaining_seconds

from orch_training import ranks
from orch_training.checkpoint import PUBLIC
from orch_training.events import Progress

FILE = "metrics.jsonl"
REPORTED = ("loss", "learning_rate", "samples_per_second")


class Course:
    """The metrics of one training on every rank; only rank 0 writes them."""

    def __init__(self, output_dir: Path, *, samples_per_step: int, start_step: int) -> None:
        self.samples_per_step = samples_per_step
        self.start_step = self.first_step = start_step
        self.progress = Progress("train", 0)
        self.writers: list[Any] = []
        if ranks.is_main():
            self.writers = [JsonLines(output_dir / FILE, start_step)]
            self.writers += tensorboard(output_dir / "tensorboard", start_step)
        self.seconds = 0.0
        self.final_loss: float | None = None
        self.logged_step = start_step
        self.began = self.logged_at = time.perf_counter()

    def begin(self, step: int, steps: int, phase: str = "train") -> None:
        if step >= steps:
            ranks.note(
                f"nothing is left to train: training ends at step {steps}, and checkpoint-{step} has reached it."
            )
        self.steps = steps
        self.first_step = step
        self.progress = Progress(phase, steps)
        self.began = self.logged_at = time.perf_counter()
        self.progress.report(step, now=True)

    def after_step(self, step: int, *, logs: bool) -> None:
        if not (logs and ranks.is_main()):
            self.progress.report(step, now=logs)
        self.seconds = time.perf_counter() - self.began
        done = (step - self.start_step) * self.samples_per_step
        note(step=step, samples=done // ranks.world_size())

    def log(self, step: int, *, epoch: float, loss: float, learning_rate: float, **extra: float) -> None:
        self.final_loss = loss
        line = self.line(step, epoch, loss, learning_rate) | extra
        if ranks.is_main():
            for writer in self.writers:
                writer.write(line)
            print(format_line(line, self.steps) + self.remaining(step), flush=True)
            figures = {name: line[name] for name in REPORTED}
            self.progress.report(step, now=True, printed=True, **figures)

    def line(self, step: int, epoch: float, loss: float, learning_rate: float) -> dict[str, Any]:
        now = time.perf_counter()
        samples = (step - self.logged_step) * self.samples_per_step
        speed = samples / (now - self.logged_at)
        self.logged_step, self.logged_at = step, now
        return {
            "step": step,
            "epoch": round(epoch, 4),
            "loss": loss,
            "learning_rate": learning_rate,
            "samples_per_second": round(speed, 3),
            "time": round(time.time(), 3),
        }

    def remaining(self, step: int) -> str:
        """Return the estimated remaining time as the end of a line; empty if it is not known."""
        seconds = remaining_seconds(
            time.perf_counter() - self.began, first=self.first_step, step=step, steps=self.steps
        )
        return "" if seconds is None else f"  {format_seconds(seconds)} left"

    def close(self) -> None:
        for writer in self.writers:
            writer.close()

    def summary(self, last_step: int) -> dict[str, Any]:
        """Return the results; the speed is that of this process's steps, including checkpoints."""
        samples = (last_step - self.start_step) * self.samples_per_step
        return {
            "steps": last_step,
            "final_loss": self.final_loss,
            "train_seconds": round(self.seconds, 3),
            "train_samples_per_second": round(samples / max(self.seconds, 1e-9), 3),
        }


def format_line(line: dict[str, Any], steps: int) -> str:
    return (
        f"step {line['step']}/{steps}  loss {line['loss']:.4f}  lr {line['learning_rate']:.2e}  "
        f"{line['samples_per_second']:.1f} samples/s"
    )


class JsonLines:
    """A file of metrics; when training starts at step N, later lines and an incomplete last line are removed."""

    def __init__(self, path: Path, start_step: int) -> None:
        lines = path.read_text(encoding="utf-8", errors="replace").splitlines() if start_step and path.exists() else []
        earlier = "".join(line + "\n" for line in lines if step_of(line) <= start_step)
        atomic_write.write(path, earlier, mode=PUBLIC)
        self.file = path.open("a", encoding="utf-8")

    def write(self, line: dict[str, Any]) -> None:
        self.file.write(json.dumps(line) + "\n")
        self.file.flush()

    def close(self) -> None:
        self.file.close()


def step_of(line: str) -> float:
    """Return the step of a line of metrics; infinity if the line is incomplete."""
    try:
        step = json.loads(line)["step"]
    except (ValueError, KeyError, TypeError, RecursionError):
        return float("inf")
    return step if isinstance(step, int) else float("inf")


class TensorBoard:
    def __init__(self, writer: Any) -> None:
        self.writer = writer

    def write(self, line: dict[str, Any]) -> None:
        for name in REPORTED:
            self.writer.add_scalar(f"train/{name}", line[name], line["step"])
        self.writer.flush()

    def close(self) -> None:
        self.writer.close()


def tensorboard(folder: Path, start_step: int) -> list[TensorBoard]:
    """Return a writer that hides later steps of an earlier process (purge_step)."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)
            module = importlib.import_module("torch.utils.tensorboard")
    except ImportError:
        ranks.note("TensorBoard files are not written because the package `tensorboard` is not installed.")
        return []
    return [TensorBoard(module.SummaryWriter(str(folder), purge_step=start_step + 1))]
