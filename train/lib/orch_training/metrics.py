"""The metrics of a training: a JSON-lines file, TensorBoard, a line of text, events.

A line of metrics.jsonl has step, epoch, loss, learning_rate, samples_per_second and time (Unix). The loss is the mean
over all ranks and over the steps since the previous line.
"""

from __future__ import annotations

import importlib
import json
import time
from pathlib import Path
from typing import Any, TextIO

from orch_node import atomic_write
from orch_node.events import note, report
from orch_node.protocol.events import format_loss, format_seconds, remaining_seconds

from orch_training import describe, ranks
from orch_training.checkpoint import PUBLIC, without_nan

FILE = "metrics.jsonl"
EVERY_SECONDS = 1.0


class Progress:
    """The progress of one phase, reported at most once a second unless `now` is set."""

    def __init__(self, phase: str, steps: int) -> None:
        self.phase = phase
        self.steps = steps
        self.last_report = 0.0

    def report(self, step: int, *, now: bool = False, **fields: object) -> None:
        if now or time.monotonic() - self.last_report >= EVERY_SECONDS:
            report("progress", phase=self.phase, step=step, steps=self.steps, **fields)
            self.last_report = time.monotonic()


class Course:
    """The metrics of one training on every rank; only rank 0 writes them."""

    def __init__(self, output_dir: Path, *, samples_per_step: int, start_step: int) -> None:
        self.samples_per_step = samples_per_step
        self.start_step = start_step
        self.file = open_lines(output_dir / FILE, start_step) if ranks.is_main() else None
        self.tensorboard = open_tensorboard(output_dir / "tensorboard", start_step) if ranks.is_main() else None
        self.seconds = 0.0
        self.final_loss: float | None = None
        self.logged_step = start_step

    def begin(self, step: int, steps: int, phase: str = "train") -> None:
        if step >= steps:
            ranks.note(describe("nothing-left", steps=steps, step=step))
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
        now = time.perf_counter()
        speed = (step - self.logged_step) * self.samples_per_step / (now - self.logged_at)
        self.logged_step, self.logged_at = step, now
        if self.file is None:
            return
        figures = {"loss": loss, "learning_rate": learning_rate, "samples_per_second": round(speed, 3)}
        line = {"step": step, "epoch": round(epoch, 4), **figures, "time": round(time.time(), 3), **extra}
        self.file.write(json.dumps(without_nan(line)) + "\n")
        self.file.flush()
        if self.tensorboard:
            for name, value in figures.items():
                self.tensorboard.add_scalar(f"train/{name}", value, step)
            self.tensorboard.flush()
        remaining = remaining_seconds(now - self.began, first=self.first_step, step=step, steps=self.steps)
        time_left = "" if remaining is None else f"  {format_seconds(remaining)} left"
        parts = (f"step {step}/{self.steps}", f"loss {format_loss(loss)}", f"lr {learning_rate:.2e}")
        print(*parts, f"{speed:.1f} samples/s{time_left}", sep="  ", flush=True)
        self.progress.report(step, now=True, printed=True, **figures)

    def close(self) -> None:
        for writer in filter(None, (self.file, self.tensorboard)):
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


def open_lines(path: Path, start_step: int) -> TextIO:
    """Open a file of metrics; when training starts at step N, later lines and an incomplete last line are removed."""
    lines = path.read_text(encoding="utf-8", errors="replace").splitlines() if start_step and path.exists() else []
    atomic_write.write(path, "".join(line + "\n" for line in lines if step_of(line) <= start_step), mode=PUBLIC)
    return path.open("a", encoding="utf-8")


def step_of(line: str) -> float:
    """Return the step of a line of metrics; infinity if the line is incomplete."""
    try:
        step = json.loads(line)["step"]
    except (ValueError, KeyError, TypeError, RecursionError):
        return float("inf")
    return step if isinstance(step, int) else float("inf")


def open_tensorboard(folder: Path, start_step: int) -> Any:
    """Return a writer that hides later steps of an earlier process (purge_step); None without the package."""
    try:
        module = importlib.import_module("torch.utils.tensorboard")
    except ImportError:
        ranks.note("TensorBoard files are not written because the package `tensorboard` is not installed.")
        return None
    return module.SummaryWriter(str(folder), purge_step=start_step + 1)
