"""Run torchrun in two pods, as processes of this machine, and replace one of them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from orchestrator.files import LIB
from tests.local.pods import await_in_logs
from tests.local.runs import write_script
from tests.support.ports import free_port

HOST, PEER = "127.0.0.2", "127.0.0.1"
SCRIPT = """
import os, time, torch, torch.distributed as dist
dist.init_process_group("gloo")
print("joined as", os.environ["RANK"], flush=True)
# All ranks leave the loop in the same round, because one that leaves earlier would break the others' collective.
done = torch.zeros(1)
while not done:
    time.sleep(0.1)
    done.fill_(os.path.exists(os.environ["DONE"]))
    dist.all_reduce(done)
dist.barrier()
dist.destroy_process_group()  # without it, gloo's threads may abort the process at its exit
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
def start_pod(folder: Path, address: str, port: int, log: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Start a pod with an address, which stands for its name: both stay the same when a pod is replaced."""
    variables = {
        "PYTHONPATH": str(LIB),
        "DONE": str(folder / "done"),
        "OMP_NUM_THREADS": "1",
        "PET_NNODES": "2:2",
        "PET_NPROC_PER_NODE": "1",
        "PET_RDZV_BACKEND": "c10d",
        "PET_RDZV_ENDPOINT": f"{HOST}:{port}",
        "PET_RDZV_ID": "run",
        "PET_MAX_RESTARTS": "2",
    }
    command = [sys.executable, "-c", POD, address, str(int(address == HOST)), str(folder / "own.py")]
    environment, stderr = os.environ | variables, subprocess.STDOUT
    with (
        log.open("wb") as output,
        subprocess.Popen(command, env=environment, stdout=output, stderr=stderr, start_new_session=True) as process,
    ):
        try:
            yield process
        finally:
            end(process)


def end(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def test_replacement_of_the_pod_of_rank_0_joins(tmp_path: Path) -> None:
    """Check that the remaining pod does not look for the ranks' store at the address of the deleted pod."""
    write_script(tmp_path, SCRIPT)
    port = free_port()
    logs = host_log, first_log, second_log = [tmp_path / name for name in ("host.log", "first.log", "second.log")]
    with start_pod(tmp_path, HOST, port, host_log) as host:
        with start_pod(tmp_path, PEER, port, first_log) as first:
            await_in_logs(lambda: "joined as 0" in first_log.read_text(), *logs)
            await_in_logs(lambda: "joined as 1" in host_log.read_text(), *logs)
            end(first)
        with start_pod(tmp_path, PEER, port, second_log) as second:
            await_in_logs(lambda: "joined as" in second_log.read_text(), *logs)
            await_in_logs(lambda: host_log.read_text().count("joined as") == 2, *logs)
            (tmp_path / "done").touch()
            await_in_logs(lambda: second.poll() == 0 and host.poll() == 0, *logs)
