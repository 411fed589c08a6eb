"""torchrun in two pods, as processes of this machine: one is deleted, and made anew."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.support.ports import free_port

LIB = Path(__file__).parents[2] / "train" / "lib"
SCRIPT = """
import os, time, torch, torch.distributed as dist
dist.init_process_group("gloo")
print("joined as", os.environ["RANK"], flush=True)
# All ranks leave the loop in the same round: one that left alone would break the others' collective.
done = torch.zeros(1)
while not done:
    time.sleep(0.1)
    done.fill_(os.path.exists(os.environ["DONE"]))
    dist.all_reduce(done)
"""
POD = """
import sys
from orch_node.pod import main
process = main.start("--local_addr=" + sys.argv[1], "--rdzv_conf=is_host=" + sys.argv[2],
                     sys.argv[3], key=b"k" * 64)
for line in process.stdout:
    sys.stdout.buffer.write(line)
    sys.stdout.flush()
sys.exit(process.wait())
"""


@contextmanager
def a_pod(tmp_path: Path, address: str, port: int, log: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Pods keep their names when they are made anew: here, their addresses."""
    environment = os.environ | {
        "PYTHONPATH": str(LIB),
        "DONE": str(tmp_path / "done"),
        "OMP_NUM_THREADS": "1",
        "PET_NNODES": "2:2",
        "PET_NPROC_PER_NODE": "1",
        "PET_RDZV_BACKEND": "c10d",
        "PET_RDZV_ENDPOINT": f"127.0.0.2:{port}",
        "PET_RDZV_ID": "run",
        "PET_MAX_RESTARTS": "2",
    }
    host = "1" if address == "127.0.0.2" else "0"
    with (
        log.open("wb") as out,
        subprocess.Popen(
            [sys.executable, "-c", POD, address, host, str(tmp_path / "script.py")],
            env=environment,
            stdout=out,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        ) as process,
    ):
        try:
            yield process
        finally:
            end(process)


def end(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def await_(found: Callable[[], bool], *logs: Path, seconds: float = 120.0) -> None:
    deadline = time.monotonic() + seconds
    while not found():
        said = [log.read_text(errors="replace")[-2000:] for log in logs if log.exists()]
        assert time.monotonic() < deadline, said
        time.sleep(0.2)


def test_a_pod_that_was_deleted_joins_again(tmp_path: Path) -> None:
    """It had rank 0: the pod that has stayed must not look for the ranks' store where it was."""
    (tmp_path / "script.py").write_text(SCRIPT)
    port = free_port()
    stays, first, second = (tmp_path / name for name in ("stays.log", "first.log", "second.log"))
    with a_pod(tmp_path, "127.0.0.2", port, stays) as host:
        with a_pod(tmp_path, "127.0.0.1", port, first) as gone:
            await_(lambda: "joined as 0" in first.read_text(), stays, first)
            await_(lambda: "joined as 1" in stays.read_text(), stays, first)
            end(gone)
        with a_pod(tmp_path, "127.0.0.1", port, second) as again:
            await_(lambda: "joined as" in second.read_text(), stays, second)
            await_(lambda: stays.read_text().count("joined as") == 2, stays, second)
            (tmp_path / "done").touch()
            await_(lambda: again.poll() == 0 and host.poll() == 0, stays, second)
