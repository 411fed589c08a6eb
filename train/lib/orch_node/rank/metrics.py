"""What a rank measures of itself: lines of RUN_DIR/ranks/rank-R.metrics.jsonl.

A line has, over the time since the line before: `steps` of the optimizer and their mean and longest
`step_seconds`, `work_seconds` (the mean part of a step outside backward(), where DDP makes a rank
wait for the slowest one), `samples_per_second` of this rank if the script tells, and `cpu_seconds`
of all threads. `rss_bytes`, `step` and `loss` are as of now. A script need not know of this;
`note(samples=..., loss=..., step=...)` of events.py tells what cannot be seen from outside.
"""

from __future__ import annotations

import atexit
import functools
import importlib
import json
import os
import threading
import time
from pathlib import Path
from types import ModuleType
from typing import Any

from orch_node.events import NOTED, send, warn
from orch_node.protocol.events import FirstStep
from orch_node.protocol.files import rank_metrics
from orch_node.whole_files import private

# At first a line a second; after that so many in all that a day gives some 6,000 of them.
SECONDS = 1.0
LINES = 1000
MOST_NAN_LOSSES = 10
PAGE = os.sysconf("SC_PAGE_SIZE")


def begin(torch: ModuleType, run_dir: Path, rank: int) -> Metrics:
    """Measure from now on, in a thread that never keeps the process alive."""
    metrics = Metrics(run_dir / rank_metrics(rank))
    metrics.follow(torch)
    threading.Thread(target=metrics.run, name="orch-metrics", daemon=True).start()
    atexit.register(metrics.end)
    return metrics


class Metrics:
    """Sums since the last line; the training thread adds to them, another one writes."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.pid = os.getpid()
        self.lock = threading.Lock()
        self.steps = 0  # of this process
        self.last_step: float | None = None
        self.backward = 0.0  # seconds since the last step
        self.trained = False  # a backward pass or an optimizer step has been seen
        self.nan_losses = NanLosses()
        self.durations: list[tuple[float, float]] = []  # (all of a step, outside backward)
        self.began = time.monotonic()
        self.written = (self.began, 0, time.process_time(), 0)  # time, steps, CPU, samples

    def follow(self, torch: ModuleType) -> None:
        """See every optimizer step and every backward() of the process."""
        optimizer = importlib.import_module("torch.optim.optimizer")
        if hasattr(optimizer, "register_optimizer_step_post_hook"):  # torch 2.0
            optimizer.register_optimizer_step_post_hook(functools.partial(self.stepped, torch))
        original = torch.autograd.backward

        @functools.wraps(original)
        def backward(*args: Any, **kwargs: Any) -> Any:
            self.trained = True
            self.nan_losses.check(torch, args[0] if args else kwargs.get("tensors"))
            began = time.perf_counter()
            try:
                return original(*args, **kwargs)
            finally:
                self.backward += time.perf_counter() - began

        torch.autograd.backward = backward

    def stepped(self, torch: ModuleType, *_: Any) -> None:
        now = time.perf_counter()
        if self.last_step is None:
            send(FirstStep(torch_seed=torch.initial_seed()))
        self.trained = True
        with self.lock:
            self.steps += 1
            if self.last_step is not None:
                seconds = now - self.last_step
                self.durations.append((seconds, max(0.0, seconds - self.backward)))
            self.last_step, self.backward = now, 0.0

    def run(self) -> None:
        while True:
            time.sleep(max(SECONDS, (time.monotonic() - self.began) / LINES))
            self.write()

    def end(self) -> None:
        if os.getpid() == self.pid:  # not in a child that was forked
            self.write()

    def write(self) -> None:
        with self.lock:
            line = self.line()
            try:
                with open(self.path, "a", encoding="utf-8", opener=private) as file:
                    file.write(json.dumps(line) + "\n")
            except OSError:  # a full disk: the training is worth more than this line
                pass

    def line(self) -> dict[str, object]:
        at, steps, cpu, samples = self.written
        noted = dict(NOTED)
        told_samples = whole(noted.get("samples"), samples)
        now = (time.monotonic(), self.steps, time.process_time(), told_samples)
        durations, self.durations = self.durations, []
        self.written = now
        seconds = max(now[0] - at, 1e-9)
        told = now[3] - samples
        return {
            "time": round(time.time(), 3),
            "seconds": round(seconds, 3),
            "step": whole(noted.get("step"), self.steps),
            "steps": now[1] - steps,
            "step_seconds": mean([one for one, _ in durations]),
            "step_seconds_max": rounded(max((one for one, _ in durations), default=None)),
            "work_seconds": mean([work for _, work in durations]),
            "samples_per_second": rounded(told / seconds) if told else None,
            "loss": number(noted.get("loss")),
            "rss_bytes": int(Path("/proc/self/statm").read_text().split()[1]) * PAGE,
            "cpu_seconds": rounded(now[2] - cpu),
        }


class NanLosses:
    """The NaN losses in a row. Many are worth a warning; a gradient scaler skips a few at first."""

    def __init__(self) -> None:
        self.in_a_row = 0

    def check(self, torch: ModuleType, tensors: Any) -> None:
        """Check what backward() starts from; reading the tensor of a device would wait for it."""
        loss: Any = tensors if torch.is_tensor(tensors) else next(iter(tensors or ()), None)
        if self.in_a_row >= MOST_NAN_LOSSES or not torch.is_tensor(loss):
            return
        if loss.device.type != "cpu" or loss.numel() != 1:
            return
        try:
            value = loss.item()
        except Exception:  # a tensor without data; a check must not end a training
            return
        self.in_a_row = self.in_a_row + 1 if value != value else 0
        if self.in_a_row == MOST_NAN_LOSSES:
            warn(f"the loss has been NaN in {MOST_NAN_LOSSES} backward passes in a row.")


def mean(values: list[float]) -> float | None:
    return rounded(sum(values) / len(values)) if values else None


def rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 6)


def whole(value: Any, otherwise: Any) -> Any:
    """A number as it was told, whole ones as such; what is none, or none that JSON knows, was not
    told."""
    if type(value) is int and abs(value) < 1 << 63:
        return value
    found = number(value)
    return otherwise if found is None else found


def number(value: Any) -> float | None:
    """A loss as it was told: a number, or a tensor of one."""
    try:
        found = float(value)
    except (TypeError, ValueError, RuntimeError, OverflowError):
        return None
    return found if abs(found) < float("inf") else None  # JSON knows no NaN
