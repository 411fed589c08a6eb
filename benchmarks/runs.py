"""What it costs when a run fails, is stopped or is listened to."""

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

REPOSITORY = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(REPOSITORY))

from tests.recorded import make_run  # noqa: E402

BIN = Path(sys.executable).parent
ORCH = str(BIN / "orch")
OTHERS_SECONDS = 15  # that the ranks which do not fail would go on
RANKS, LINES_PER_SECOND, STREAM_SECONDS = 64, 100, 10
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
import sys, time
files = [open(f"{sys.argv[1]}/ranks/rank-{rank}.log", "w", buffering=1)
         for rank in range(int(sys.argv[2]))]
began, count = time.monotonic(), int(sys.argv[3]) * int(sys.argv[4])
for line in range(count):
    for rank, file in enumerate(files):
        file.write(f"rank {rank} line {line} of the log, written at {time.time():.6f}\\n")
    time.sleep(max(0.0, began + (line + 1) / int(sys.argv[3]) - time.monotonic()))
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


def orch_train(mark: str, how: str, seconds: int) -> list[str]:
    rest = ["--ppn", "2", "--backend", "gloo", "--fresh", "--", mark, how, str(seconds)]
    return [ORCH, "train", "script.py", *rest]


def mpiexec(mark: str, how: str, seconds: int) -> list[str]:
    return ["mpiexec.hydra", "-n", "2", sys.executable, "script.py", mark, how, str(seconds)]


def failures(folder: Path, repeats: int) -> None:
    """From a rank's exception to the end of the command, all other ranks stopped."""

    def after_failure(command: list[str]) -> float:
        mark = folder / "mark"
        mark.unlink(missing_ok=True)
        subprocess.run(command, cwd=folder, env=ENVIRONMENT, capture_output=True)
        return time.time() - float(mark.read_text())

    figures = interleaved(
        {
            "mpiexec.hydra by hand": lambda: after_failure(mpiexec("mark", "fail", OTHERS_SECONDS)),
            "orch train": lambda: after_failure(orch_train("mark", "fail", OTHERS_SECONDS)),
        },
        repeats,
    )
    title = f"From an exception to the end; the other rank would go on for {OTHERS_SECONDS} s"
    report(title, "seconds", figures, "mpiexec.hydra by hand")


def stops(folder: Path, repeats: int) -> None:
    """orch stop looks at /proc on every node; kill says nothing of the ranks."""

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
        taken = time.time() - began
        process.wait()
        return taken

    def by_hand() -> float:
        process = started(mpiexec("mark", "run", 600))
        began = time.time()
        process.send_signal(signal.SIGTERM)
        process.wait()
        return time.time() - began

    figures = interleaved({"SIGTERM to mpiexec.hydra": by_hand, "orch stop": by_orch}, repeats)
    report("Stopping 2 ranks", "seconds", figures, "SIGTERM to mpiexec.hydra")


def streams(folder: Path) -> None:
    """tail gives what there is, also half a line; a line is lost if it does not come whole."""
    found = {"tail -F": heard(folder, tail_command), "orch logs --follow": heard(folder, logs_command)}
    title = f"Mean delay of a line, {RANKS} ranks x {LINES_PER_SECOND} lines/s"
    report(title, "seconds", {name: [delay] for name, (delay, _) in found.items()}, "tail -F")
    for name, (_, lost) in found.items():
        print(f"  {name}: {lost} of {EXPECTED} lines lost, broken or out of order", file=sys.stderr)


def tail_command(run: Path) -> list[str]:
    paths = [str(run / f"ranks/rank-{rank}.log") for rank in range(RANKS)]
    return ["tail", "-q", "-n", "+1", "-F", *paths]


def logs_command(run: Path) -> list[str]:
    return [ORCH, "logs", run.name, "--follow", "--runs-dir", str(run.parent)]


def heard(folder: Path, command_of: Callable[[Path], list[str]]) -> tuple[float, int]:
    """(mean delay, lines that did not come whole and in their order)."""
    train = {"train": str(REPOSITORY / "train"), "python": sys.executable}
    with tempfile.TemporaryDirectory(dir=folder) as base:
        run = make_run(Path(base), ranks=RANKS, nodes=1, **train)
        rate = (str(RANKS), str(LINES_PER_SECOND), str(STREAM_SECONDS))
        writer = subprocess.Popen(
            [sys.executable, "-c", WRITER, str(run), *rate], env=os.environ | {"ORCH_RUN_DIR": str(run)}
        )
        time.sleep(0.5)
        reader = subprocess.Popen(
            command_of(run), cwd=base, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        )
        threading.Thread(target=end_after, args=(writer, reader)).start()
        delays = list(delays_of(reader))
    return sum(delays) / len(delays), EXPECTED - len(delays)


def end_after(writer: subprocess.Popen[bytes], reader: subprocess.Popen[str]) -> None:
    writer.wait()
    time.sleep(DRAIN_SECONDS)
    reader.terminate()


def delays_of(reader: subprocess.Popen[str]) -> Iterator[float]:
    seen: dict[str, int] = {}
    for line in reader.stdout or ():
        found = LINE.search(line)
        if found and seen.get(found[1], -1) + 1 == int(found[2]):
            seen[found[1]] = int(found[2])
            yield time.time() - float(found[3])


if __name__ == "__main__":
    main()
