"""Measure how long it takes to end failed runs, to stop runs, and to follow their logs."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from measure import arguments, interleaved, report

BIN = Path(sys.executable).parent
ORCH = str(BIN / "orch")
REMAINING_SECONDS = 15  # for which the ranks that do not fail would continue
RANKS, LINES_PER_SECOND, STREAM_SECONDS = 2, 2000, 10
EXPECTED = RANKS * LINES_PER_SECOND * STREAM_SECONDS
DRAIN_SECONDS = 5.0
LINE = re.compile(r"(?:^|\] )rank (\d+) line (\d+) of the log, written at (\d+\.\d{6})$")
SCRIPT = """
import os, sys, time
rank = int(os.environ.get("RANK", os.environ.get("PMI_RANK")))
print("started", flush=True)
if rank == 0:
    open(sys.argv[1], "w").write(repr(time.time()))
if rank == 1 and sys.argv[2] == "fail":
    time.sleep(1)
    open(sys.argv[1], "w").write(repr(time.time()))
    raise ValueError("boom")
time.sleep(float(sys.argv[3]))
"""
WRITER = """
import os, sys, time
rank, rate = os.environ.get("RANK", os.environ.get("PMI_RANK")), int(sys.argv[1])
began = time.monotonic()
for line in range(rate * int(sys.argv[2])):
    print(f"rank {rank} line {line} of the log, written at {time.time():.6f}", flush=True)
    time.sleep(max(0.0, began + (line + 1) / rate - time.monotonic()))
"""
ENVIRONMENT = os.environ | {"PATH": f"{BIN}:{os.environ['PATH']}"}


def main() -> None:
    repeats = arguments().repeats
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "script.py").write_text(SCRIPT)
        failures(folder, repeats)
        stops(folder, repeats)
        streams(folder)


def orch_train(mark: str, behavior: str, seconds: int) -> list[str]:
    options = ["--ppn", "2", "--backend", "gloo"]
    return [ORCH, "train", "script.py", *options, "--", mark, behavior, str(seconds)]


def mpiexec(mark: str, behavior: str, seconds: int) -> list[str]:
    return ["mpiexec.hydra", "-n", "2", sys.executable, "script.py", mark, behavior, str(seconds)]


def failures(folder: Path, repeats: int) -> None:
    """Measure the time from an exception in a rank to the end of the command, when all ranks have stopped."""

    def after_failure(command: list[str]) -> float:
        mark = folder / "mark"
        mark.unlink(missing_ok=True)
        subprocess.run(command, cwd=folder, env=ENVIRONMENT, capture_output=True)
        return time.time() - float(mark.read_text())

    figures = interleaved(
        {
            "mpiexec.hydra by hand": lambda: after_failure(mpiexec("mark", "fail", REMAINING_SECONDS)),
            "orch train": lambda: after_failure(orch_train("mark", "fail", REMAINING_SECONDS)),
        },
        repeats,
    )
    title = f"From an exception to the end; the other rank would continue for {REMAINING_SECONDS} s"
    report(title, "seconds", figures, "mpiexec.hydra by hand")


def stops(folder: Path, repeats: int) -> None:
    """Measure stopping a run; unlike kill, orch stop verifies in /proc on every node that the ranks ended."""

    def started(command: list[str]) -> subprocess.Popen[bytes]:
        (folder / "mark").unlink(missing_ok=True)
        process = subprocess.Popen(
            command, cwd=folder, env=ENVIRONMENT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        while not (folder / "mark").exists():
            time.sleep(0.02)
        return process

    def by_orch() -> float:
        process = started(orch_train("mark", "run", 600))
        began = time.time()
        subprocess.run([ORCH, "stop", "last"], cwd=folder, check=True, capture_output=True)
        seconds = time.time() - began
        process.wait()
        return seconds

    def by_hand() -> float:
        process = started(mpiexec("mark", "run", 600))
        began = time.time()
        process.send_signal(signal.SIGTERM)
        process.wait()
        return time.time() - began

    figures = interleaved({"SIGTERM to mpiexec.hydra": by_hand, "orch stop": by_orch}, repeats)
    report("Stopping 2 ranks", "seconds", figures, "SIGTERM to mpiexec.hydra")


def streams(folder: Path) -> None:
    """Measure the delay and the loss of lines; tail also prints parts of lines, which count as lost."""
    results = {"tail -F": follow(folder, tail_command), "orch logs --follow": follow(folder, logs_command)}
    title = f"Mean delay of a line, {RANKS} ranks x {LINES_PER_SECOND} lines/s"
    report(title, "seconds", {name: [delay] for name, (delay, _) in results.items()}, "tail -F")
    for name, (_, lost) in results.items():
        print(f"  {name}: {lost} of {EXPECTED} lines lost, broken or out of order", file=sys.stderr)


def tail_command(run: Path) -> list[str]:
    paths = [str(run / f"ranks/rank-{rank}.log") for rank in range(RANKS)]
    return ["tail", "-q", "-n", "+1", "-F", *paths]


def logs_command(run: Path) -> list[str]:
    return [ORCH, "logs", run.name, "--follow", "--runs-dir", str(run.parent)]


def follow(folder: Path, command_of: Callable[[Path], list[str]]) -> tuple[float, int]:
    """Return the mean delay, and the number of lines that did not arrive complete and in order."""
    (folder / "writer.py").write_text(WRITER)
    with tempfile.TemporaryDirectory(dir=folder) as runs_dir:
        options = ["--ppn", str(RANKS), "--backend", "gloo", "--show", "none", "--runs-dir", runs_dir]
        command = [ORCH, "train", "writer.py", *options, "--", str(LINES_PER_SECOND), str(STREAM_SECONDS)]
        train = subprocess.Popen(command, cwd=folder, env=ENVIRONMENT, stdout=subprocess.DEVNULL)
        while not (logs := list(Path(runs_dir).glob("*/ranks/rank-*.log"))) or len(logs) < RANKS:
            time.sleep(0.02)
        reader = subprocess.Popen(
            command_of(logs[0].parent.parent), cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        )
        threading.Thread(target=end_after, args=(train, reader)).start()
        delays = list(delays_of(reader))
    return sum(delays) / len(delays), EXPECTED - len(delays)


def end_after(train: subprocess.Popen[bytes], reader: subprocess.Popen[str]) -> None:
    train.wait()
    time.sleep(DRAIN_SECONDS)
    reader.terminate()


def delays_of(reader: subprocess.Popen[str]) -> Iterator[float]:
    last_lines: dict[str, int] = {}
    for line in reader.stdout or ():
        match = LINE.search(line)
        if match and last_lines.get(match[1], -1) < int(match[2]):
            last_lines[match[1]] = int(match[2])
            yield time.time() - float(match[3])


if __name__ == "__main__":
    main()
