"""What it costs when a run fails, is stopped or is listened to: to name, to stop, to stream logs."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from measure import arguments, interleaved, report

REPOSITORY = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(REPOSITORY))

from tests.recorded import make_run  # noqa: E402

BIN = Path(sys.executable).parent
ORCH = str(BIN / "orch")
OTHERS_SECONDS = 15  # that the ranks which do not fail would go on
RANKS, LINES_PER_SECOND, STREAM_SECONDS = 64, 100, 10
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
            command, cwd=folder, env=ENVIRONMENT,
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
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
    """Delay of the lines of 64 ranks, and how many are lost (an error)."""
    delays = {
        "tail -F": delay_of(folder, tail_command),
        "orch logs --follow": delay_of(folder, logs_command),
    }
    title = f"Mean delay of a line, {RANKS} ranks x {LINES_PER_SECOND} lines/s, none lost"
    report(title, "seconds", {name: [value] for name, value in delays.items()}, "tail -F")


def tail_command(run: Path) -> list[str]:
    paths = [str(run / f"ranks/rank-{rank}.log") for rank in range(RANKS)]
    return ["tail", "-q", "-n", "+1", "-F", *paths]


def logs_command(run: Path) -> list[str]:
    return [ORCH, "logs", run.name, "--follow", "--runs-dir", str(run.parent)]


def delay_of(folder: Path, command_of: object) -> float:
    train = {"train": str(REPOSITORY / "train"), "python": sys.executable}
    with tempfile.TemporaryDirectory(dir=folder) as base:
        run = make_run(Path(base), ranks=RANKS, nodes=1, **train)
        card = json.loads((run / "plan.json").read_text())
        assert card["run_dir"] == str(run)
        rate = (str(RANKS), str(LINES_PER_SECOND), str(STREAM_SECONDS))
        writer = subprocess.Popen(
            [sys.executable, "-c", WRITER, str(run), *rate],
            env=os.environ | {"ORCH_RUN_DIR": str(run)},
        )
        time.sleep(0.3)
        reader = subprocess.Popen(command_of(run), cwd=base, stdout=subprocess.PIPE, text=True)
        expected = RANKS * LINES_PER_SECOND * STREAM_SECONDS
        seen: dict[int, int] = {}
        delays = []
        for line in reader.stdout:
            words = line.split("rank ", 1)[1].split()
            rank, number = int(words[0]), int(words[2])
            assert seen.get(rank, -1) + 1 == number, f"rank {rank}: line {number} out of order"
            seen[rank] = number
            delays.append(time.time() - float(words[-1]))
            if len(delays) == expected:
                break
        reader.terminate()
        reader.wait()
        writer.wait()
    assert len(delays) == expected, f"{expected - len(delays)} lines are lost"
    return sum(delays) / len(delays)


if __name__ == "__main__":
    main()
