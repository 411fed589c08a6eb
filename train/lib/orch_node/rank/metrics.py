"""Measure a rank: its lines in RUN_DIR/ranks/rank-R.metrics.jsonl, and its heartbeats for the supervisor.

A line covers the time since the previous line: optimizer `steps`, their mean and longest
`step_seconds`, `work_seconds` (the mean part of a step outside backward(), where DDP makes a rank
wait for the slowest one), `samples_per_second` of this rank if the script reports them, and
`cpu_seconds` of all threads. `rss_bytes`, `gpu_bytes` (memory that torch holds on GPUs; None without
one), `step` and `loss` are current values. The script takes no
part in this; with `note(samples=..., loss=..., step=...)` of events.py it may add what cannot be
measured from outside.

A heartbeat has the numbers of collective operations, sends and receives, remote calls and optimizer steps, and the
bytes of the rank's log. Unchanged numbers are not sent again, so a rank that hangs sends nothing, and its last numbers
show where it is.
"""

from __future__ import annotations

import atexit
import contextlib
import itertools
import json
import os
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from types import ModuleType
from typing import Any

from orch_node.agent.rank_signals import size_of
from orch_node.atomic_write import private
from orch_node.events import NOTED, PROGRESS_REPORTED, send, warn
from orch_node.protocol.environment import STOP_ON_NAN
from orch_node.protocol.events import NAN_LOSS, STEPS_PER_SECOND, FirstStep, Heartbeat, Progress
from orch_node.protocol.files import RANK_LOG, RANK_METRICS
from orch_node.rank import communication
from orch_node.rank.checks import RankError
from orch_node.rank.hooks import watch_gradients, watch_steps

SECONDS = 1.0
HEARTBEAT_SECONDS = 2
LINES = 1000  # one a second at first; later lines are written less often: about 6,000 in a day
MAX_REPORTS = 2000  # about so many progress reports in all: a long run reports less often
IDLE_SECONDS = 20.0  # without progress, after which a rank that uses no CPU is idle
IDLE_CPU_SHARE = 0.2  # of one core; a rank that waits in a collective of ccl polls and sleeps
MAX_NAN_LOSSES = 10
PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


def begin(torch: ModuleType, run_dir: Path, rank: int, callback: Callable[[], None]) -> Metrics:
    """Start measuring, in a daemon thread, which also calls `callback` before each heartbeat."""
    metrics = Metrics(torch, run_dir, rank)
    watch_steps(metrics.before_step, metrics.add_step)
    watch_gradients(torch, "backward", metrics.before_backward, metrics.after_backward)
    threading.Thread(target=metrics.run, args=(callback,), name="orch-metrics", daemon=True).start()
    atexit.register(metrics.end)
    return metrics


class Metrics:
    """Sums since the last line; the training thread adds to them, a daemon thread writes them."""

    def __init__(self, torch: ModuleType, run_dir: Path, rank: int) -> None:
        self.torch, self.rank = torch, rank
        self.path, self.log = run_dir / RANK_METRICS.format(rank), run_dir / RANK_LOG.format(rank)
        self.pid = os.getpid()
        self.lock = threading.Lock()
        self.steps = 0  # of this process
        self.last_step: float | None = None
        self.had_state = True  # whether an optimizer had a state before the first step, as from a checkpoint
        self.backward = 0.0  # seconds since the last step
        self.trained = False  # whether a backward pass or an optimizer step was made
        self.nan_losses = NanLosses()
        self.durations: list[tuple[float, float]] = []  # (whole step, outside backward)
        self.began = time.monotonic()
        self.written = (self.began, 0, time.process_time(), 0)  # time, steps, CPU, samples
        self.sent, self.sent_at, self.sent_cpu = Heartbeat(), self.began, time.process_time()
        self.reported_at, self.reported_steps = self.began, 0

    def before_backward(self, tensors: Any = None, *_: Any, **__: Any) -> None:
        self.trained = True
        self.nan_losses.check(self.torch, tensors)

    def after_backward(self, seconds: float) -> None:
        self.backward += seconds

    def before_step(self, optimizer: Any, *_: Any) -> None:
        if self.last_step is None:
            self.had_state = bool(optimizer.state)

    def add_step(self, optimizer: Any, *_: Any) -> None:
        now = time.perf_counter()
        if self.last_step is None:
            is_new = not self.had_state and bool(optimizer.state)
            send(FirstStep(torch_seed=self.torch.initial_seed(), new_optimizer=is_new))
        self.trained = True
        with self.lock:
            self.steps += 1
            if self.last_step is not None:
                seconds = now - self.last_step
                self.durations.append((seconds, max(0.0, seconds - self.backward)))
            self.last_step, self.backward = now, 0.0

    def run(self, callback: Callable[[], None]) -> None:
        for second in itertools.count():
            if second % HEARTBEAT_SECONDS == 0:
                callback()
                if self.rank == 0:
                    self.report_steps()
                self.send_heartbeat()
            time.sleep(SECONDS)
            now = time.monotonic()
            if now - self.written[0] >= (now - self.began) / LINES:
                self.write()

    def end(self) -> None:
        if os.getpid() == self.pid:  # not in a forked child
            self.write()

    def heartbeat(self) -> Heartbeat:
        """Return how far this rank is now."""
        pending = communication.pending(self.torch)
        counts = communication.collectives(self.torch)
        counts.subtract(pending)
        return Heartbeat(
            collectives=sum(counts.values()),
            world_collectives=counts[communication.WORLD],
            groups=communication.newest_groups(counts),
            point_to_point=communication.COUNTS.point_to_point + communication.COUNTS.remote_calls,
            steps=self.steps,
            log=size_of(self.log),
        )

    def send_heartbeat(self) -> None:
        """Send a heartbeat if a number has changed, or once if this rank has been idle for a while."""
        now, cpu = time.monotonic(), time.process_time()
        heartbeat, seconds = self.heartbeat(), now - self.sent_at
        is_same = heartbeat == replace(self.sent, idle=False)
        is_idle = seconds >= IDLE_SECONDS and cpu - self.sent_cpu < IDLE_CPU_SHARE * seconds
        if is_same and (self.sent.idle or not is_idle):
            return
        if not is_same:
            self.sent_at, self.sent_cpu = now, cpu
        self.sent = replace(heartbeat, idle=is_same)
        send(self.sent)

    def report_steps(self, *, in_all: bool = False) -> None:
        """Report the number of steps and their rate, unless the script reports progress itself.

        Args:
            in_all: with the rate since the beginning; otherwise since the last report, if that was long ago.
        """
        if in_all:
            self.reported_at, self.reported_steps = self.began, 0
        now, steps = time.monotonic(), self.steps
        seconds, pause = now - self.reported_at, max(HEARTBEAT_SECONDS, (now - self.began) / MAX_REPORTS)
        if PROGRESS_REPORTED or (seconds < pause and not in_all):
            return
        if steps > self.reported_steps:
            rate = round((steps - self.reported_steps) / seconds, 3)
            send(Progress(phase="train", step=steps, figures={STEPS_PER_SECOND: rate}))
        self.reported_at, self.reported_steps = now, steps

    def write(self) -> None:
        with self.lock, contextlib.suppress(OSError):  # a full disk and too many open files do not end the thread
            line = json.dumps(self.line())
            with open(self.path, "a", encoding="utf-8", opener=private) as file:
                file.write(f"{line}\n")

    def line(self) -> dict[str, object]:
        noted = dict(NOTED)
        before, samples = self.written, number_or(noted.get("samples"), self.written[3])
        self.written = (time.monotonic(), self.steps, time.process_time(), samples)
        elapsed, steps, cpu_seconds, new_samples = (now - last for now, last in zip(self.written, before))
        seconds = max(elapsed, 1e-9)
        durations, self.durations = self.durations, []
        line = {
            "time": time.time(),
            "seconds": seconds,
            "step": number_or(noted.get("step"), self.steps),
            "steps": steps,
            "step_seconds": fmean(step for step, _ in durations) if durations else None,
            "step_seconds_max": max((step for step, _ in durations), default=None),
            "work_seconds": fmean(outside for _, outside in durations) if durations else None,
            "samples_per_second": new_samples / seconds if new_samples else None,
            "rss_bytes": int(Path("/proc/self/statm").read_text().split()[1]) * PAGE_BYTES,
            "gpu_bytes": gpu_bytes(),
            "cpu_seconds": cpu_seconds,
        }
        rounded = {name: round(value, 6) if type(value) is float else value for name, value in line.items()}
        return {**rounded, "loss": finite_number(noted.get("loss"))}


def gpu_bytes() -> int | None:
    """Return the memory that torch holds on the GPUs of this process; None before it uses one."""
    cuda = sys.modules.get("torch.cuda")
    if cuda is None or not cuda.is_initialized():
        return None
    return sum(int(cuda.memory_reserved(device)) for device in range(cuda.device_count()))


class NanLosses:
    """Counts consecutive NaN losses, and warns of many; a gradient scaler skips a few at first."""

    def __init__(self) -> None:
        self.in_a_row = 0
        self.ends_rank = STOP_ON_NAN in os.environ

    def check(self, torch: ModuleType, tensors: Any) -> None:
        """Check the tensor that backward() starts from; reading one on a device would wait for it.

        Raises:
            RankError: if the loss has been NaN too often and the user wants the run to end then.
        """
        loss: Any = tensors if torch.is_tensor(tensors) else next(iter(tensors or ()), None)
        is_number_on_cpu = torch.is_tensor(loss) and loss.device.type == "cpu" and loss.numel() == 1
        if self.in_a_row >= MAX_NAN_LOSSES or not is_number_on_cpu:
            return
        try:
            value = loss.item()
        except Exception:  # a tensor without data; the check never ends a training
            return
        self.in_a_row = self.in_a_row + 1 if value != value else 0
        if self.in_a_row == MAX_NAN_LOSSES:
            message = f"{NAN_LOSS} in {MAX_NAN_LOSSES} backward passes in a row."
            if self.ends_rank:
                self.in_a_row -= 1  # also if the script handles this error
                raise RankError(message)
            warn(message)

    def end(self) -> None:
        """Warn of a training that ends with too few NaN losses for a warning before."""
        if 0 < self.in_a_row < MAX_NAN_LOSSES:
            warn(f"{NAN_LOSS} in the last backward passes ({self.in_a_row}).")


def number_or(value: Any, default: Any) -> Any:
    """Return an integer unchanged, another number as a float, and the default for anything else."""
    if type(value) is int and abs(value) < 1 << 63:
        return value
    number = finite_number(value)
    return default if number is None else number


def finite_number(value: Any) -> float | None:
    """Return the float in a number or tensor; None if there is none that JSON can express."""
    with contextlib.suppress(Exception):  # the methods of a value may raise any type
        number = float(value.item() if hasattr(value, "item") else value)  # torch warns of float() with a gradient
        return number if abs(number) < float("inf") else None
    return None
