"""Run a mode of a pod in Kubernetes: `node.py pod MODE POD_JSON [-- SCRIPT ARGS...]`.

MODE is `torchrun`: the ranks of this pod, which torchrun joins with those of the others. The output of
the run goes to standard output, which clients read through the API: events as JSON lines, log lines of
the ranks as `[RANK] text`, their metrics as {"metrics": RANK, ...}. After SIGTERM (an eviction, a spot
node) the ranks write a checkpoint, unless `orch stop` has created its file.

The exit code is that of the run, 75 if its ranks were preempted, or 78 if this pod cannot run it.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from types import FrameType
from typing import IO, NoReturn

from orch_node import disk, program
from orch_node.agent import rank_signals
from orch_node.agent.processes import read_process, signal_of_process
from orch_node.line_pipes import MAX_LAUNCHER_LINE_BYTES
from orch_node.machine import send_signal, start_time
from orch_node.pod import project, rendezvous
from orch_node.pod.relay import Relay, emit, emit_event
from orch_node.protocol import events, files, pod
from orch_node.protocol.layout import bf16_flag, check_flags
from orch_node.protocol.outcome import EX_TEMPFAIL, ProcessRecord
from orch_node.protocol.pod import PodConfig, node_name
from orch_node.rank.checks import describe
from orch_node.standalone import facts
from orch_node.supervisor.torchrun import RENDEZVOUS

EX_CONFIG = 78
# torch's agents retain the address of the ranks' store from their first rendezvous. When a pod is
# replaced, the remaining agents would connect to the old address.
NEW_STORE = {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
TICK_SECONDS = 0.1
STACK_TRACES_SECONDS = 0.5
KILL_AFTER_SECONDS = 20.0


def main(argv: list[str]) -> int:
    """Run the ranks of a pod and return its exit code."""
    config = pod.parse(Path(argv[1]).read_text())
    try:
        check(config)
        if config.attempt > 1:
            run_dir = Path(config.run_dir)
            with contextlib.suppress(FileExistsError):  # which only the first pod of this attempt creates
                (run_dir / f".attempt-{config.attempt}").touch(0o600, exist_ok=False)
                (run_dir / files.STOP).unlink(missing_ok=True)  # the request to end an earlier attempt
        if config.project:
            project.unpack(config.project, config.attempt)
        # If the operator selects the c10d rendezvous; a static one unpickles nothing.
        has_key = os.environ.get("PET_RDZV_BACKEND") == "c10d"
        key = rendezvous.key_of(Path(config.run_dir)) if has_key else None
        options = rendezvous.options()
    except (ValueError, TimeoutError) as error:
        refuse(str(error))
    except PermissionError as error:
        refuse(describe("volume-of-another-user", path=error.filename or config.run_dir, user=os.getuid()))
    except OSError as error:
        refuse(disk.describe_error(error.filename or config.run_dir, error))
    script = argv[argv.index("--") + 1 :] if "--" in argv else []
    rank = (str(program.PROGRAM), "pod-rank", argv[1], "--", *script)
    return Torchrun(config, (*options, f"--nproc_per_node={config.ppn}", *rank), key).run()


def check(config: PodConfig) -> None:
    """Check that this pod can run its part.

    Raises:
        ValueError: with a solution, if it cannot.
        OSError: if the volume cannot be written.
    """
    stack = os.environ.get("ORCH_STACK", config.stack)  # images that orch has not built do not set it
    if stack != config.stack:
        raise ValueError(f"the image has stack '{stack}', the run is planned for '{config.stack}'.")
    pods = os.environ.get("PET_NNODES", "1")  # of torchrun; with a minimum for elastic runs: 2:4
    if pods.rpartition(":")[2] != str(config.pods):
        raise ValueError(describe("wrong-number-of-pods", pods=pods, planned=config.pods))
    flags = check_flags(facts.cpu_flags())
    if config.needs_bf16 and not bf16_flag(flags):
        lack = "this pod's CPU has no BF16 instructions"
        raise ValueError(describe("bf16-required", lack=lack, hint="node_selector"))
    folder = Path(config.run_dir) / files.RANKS
    for private_folder in (folder.parent, folder):
        private_folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    (folder / f".{os.uname().nodename}").touch()


def refuse(problem: str) -> NoReturn:
    """Report why this pod cannot run its part, and exit."""
    emit_event(events.Refused(text=f"{pod_name()}: {problem}"))
    print(f"error: {problem}", file=sys.stderr, flush=True)
    raise SystemExit(EX_CONFIG)


def pod_name() -> str:
    return node_name(os.uname().nodename)


class Torchrun:
    """torchrun and its ranks in this pod."""

    def __init__(self, config: PodConfig, arguments: Sequence[str], key: bytes | None) -> None:
        self.config = config
        self.heard: float | None = None  # no progress is expected before the first rank has started
        self.wrappers: dict[int, tuple[int, int | None]] = {}  # their pids and start times
        self.children: dict[int, ProcessRecord] = {}
        self.failed: float | None = None
        self.told_to_end: float | None = None
        self.preempted = False
        self.relay = Relay(Path(config.run_dir), ranks=self.wrappers)
        self.process = start(*arguments, key=key)  # after the relay has seen what an earlier pod has relayed
        signal.signal(signal.SIGTERM, self.preempt)
        signal.signal(signal.SIGINT, self.pass_on)

    def run(self) -> int:
        """Run torchrun until it ends and return its exit code."""
        assert self.process.stdout is not None
        reader = threading.Thread(target=self.read, args=(self.process.stdout,), daemon=True)
        reader.start()
        while self.process.poll() is None:
            self.relay.pump()
            self.check_time_limits()
            time.sleep(TICK_SECONDS)
        reader.join(timeout=2.0)
        while self.relay.pump():
            pass
        self.relay.pump(last=True)
        if self.preempted:
            return EX_TEMPFAIL
        code = self.process.returncode
        return code if code >= 0 else 128 - code

    def read(self, stdout: IO[bytes]) -> None:
        """Relay the lines of torchrun, and handle the events of the ranks among them."""
        for line in iter(lambda: stdout.readline(MAX_LAUNCHER_LINE_BYTES), b""):
            event = events.parse_from_rank(line)
            line = events.render(event) if isinstance(event, events.UnreadableEvent) else line
            emit(line if line.endswith(b"\n") else line + b"\n")
            if event is not None:
                self.add_event(event)

    def add_event(self, event: events.Event) -> None:
        if isinstance(event, events.PROGRESS_EVENTS):
            self.heard = time.monotonic()
        if isinstance(event, events.Started) and event.has_processes:
            ppn = self.config.ppn
            if any(rank // ppn != event.rank // ppn for rank in self.wrappers):
                # torchrun has numbered the pods anew because one is lost, which has relayed its lines.
                self.wrappers = {}
                self.relay = Relay(Path(self.config.run_dir), ranks=self.wrappers)
            self.wrappers[event.rank] = (event.wrapper, start_time(event.wrapper))
            if child := read_process(event.pid, []):
                self.children[event.rank] = child
            self.failed = None
        elif isinstance(event, events.Unanswered):
            self.children.pop(event.rank, None)
        elif isinstance(event, events.Exited):
            self.children.pop(event.rank, None)
            self.preempted = self.preempted or event.preempted
            if event.is_failure and not self.failed:
                self.failed = time.monotonic()
                self.take_stack_traces()

    def check_time_limits(self) -> None:
        """End ranks and report a stall when their time limits have passed."""
        now = time.monotonic()
        if self.failed and now - self.failed > STACK_TRACES_SECONDS:
            self.failed = None
            for wrapper in self.wrappers.values():  # a failed rank's wrapper stays until this signal
                send_signal(*wrapper, signal.SIGTERM)
        limit = self.config.stall_timeout
        if limit and self.heard and now - self.heard > limit and not self.told_to_end:
            self.take_stack_traces()
            emit_event(events.Stalled(text=f"{pod_name()}: no progress for {limit:.0f} s"))
            time.sleep(STACK_TRACES_SECONDS)
            self.pass_on(signal.SIGTERM, None)
        if self.told_to_end and now - self.told_to_end > KILL_AFTER_SECONDS:
            self.process.kill()

    def take_stack_traces(self) -> None:
        """Make the remaining ranks write their stack traces to their logs."""
        for child in list(self.children.values()):
            rank_signals.send_first_handled(child, signal_of_process(child.pid))

    def preempt(self, number: int, frame: FrameType | None) -> None:
        """Make the ranks write a checkpoint and end, or end them at once if none would write one.

        The kubelet waits for the checkpoint until the pod's grace period has passed.
        """
        is_stopped = (Path(self.config.run_dir) / files.STOP).exists()  # by `orch stop`
        if is_stopped or not rank_signals.preempt(list(self.children.values())):
            self.pass_on(number, frame)

    def pass_on(self, number: int, frame: FrameType | None) -> None:
        """Pass a request to end on to torchrun."""
        self.told_to_end = self.told_to_end or time.monotonic()
        self.process.send_signal(signal.SIGTERM)


def start(*arguments: str, key: bytes | None) -> subprocess.Popen[bytes]:
    """Start torchrun with these arguments; a `key` selects orch's signed rendezvous."""
    torch_agent = [sys.executable, "-m", "torch.distributed.run"]
    signed_agent = [*program.command("torchrun-on-node"), f"--rdzv_backend={RENDEZVOUS}"]
    process = subprocess.Popen(
        [*(signed_agent if key else torch_agent), *arguments],
        env={**os.environ, **NEW_STORE},
        stdin=subprocess.PIPE if key else subprocess.DEVNULL,
        stdout=subprocess.PIPE,
    )
    if key and process.stdin:
        with contextlib.suppress(BrokenPipeError):
            os.write(process.stdin.fileno(), key + b"\n")
    return process
