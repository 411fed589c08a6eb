"""Measure speed and memory of fetching a file from a pod, with orch and with the Kubernetes client.

orch uses the websocket itself. The API server of the tests runs in a separate process.
"""

from __future__ import annotations

import functools
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from measure import arguments, interleaved, report

REPOSITORY = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(REPOSITORY), str(REPOSITORY / "train/lib")]
MIB = 1 << 20
SIZES = (32, 256)
CLIENT_SIZE = 32  # MiB; larger files take minutes


def main() -> None:
    if len(sys.argv) > 1 and sys.argv[1] in ("orch", "client"):
        return fetch(*sys.argv[1:])
    repeats = arguments().repeats
    with tempfile.TemporaryDirectory() as name:
        readers = [("orch", size) for size in SIZES] + [("client", CLIENT_SIZE)]
        memory: dict[str, list[float]] = {}
        cases = {}
        for reader, size in readers:
            path = Path(name) / str(size)
            with path.open("wb") as file:
                file.truncate(size * MIB)
            title = f"{reader}, {size} MiB"
            cases[title] = functools.partial(rate, reader, path, memory.setdefault(title, []))
        figures = interleaved(cases, repeats)
    base = f"orch, {SIZES[0]} MiB"
    report("Fetching a file from a pod", "MB/s", figures, base)
    report("Memory of the reader", "MiB", memory, base)


def rate(reader: str, path: Path, memory: list[float]) -> float:
    """Return MB/s, and append the peak memory in MiB to a list."""
    command = [sys.executable, __file__, reader, str(path)]
    process = subprocess.run(command, check=True, capture_output=True, text=True)
    seconds, peak = map(float, process.stdout.split())
    memory.append(peak)
    return path.stat().st_size / 1e6 / seconds


def fetch(reader: str, path: str) -> None:
    """Print the seconds and the peak memory in MiB."""
    serve = (
        "import sys; sys.path[:0] = sys.argv[1:]\n"
        "from tests.support.kubernetes_api import Api\n"
        "with Api() as api: print(api.url, flush=True); sys.stdin.read()"
    )
    from tests.support.kubernetes_api import make_client

    with subprocess.Popen(
        [sys.executable, "-c", serve, *sys.path[:2]], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as server:
        assert server.stdout is not None
        cluster = make_client(server.stdout.readline().strip())
        read = by_orch if reader == "orch" else by_client
        read(cluster, __file__)  # import everything first
        began = time.perf_counter()
        size = read(cluster, path)
        seconds = time.perf_counter() - began
        assert server.stdin is not None
        server.stdin.close()
    assert size == Path(path).stat().st_size
    print(seconds, peak_memory())


def peak_memory() -> float:
    """Return the peak memory of this process in MiB."""
    (peak,) = re.findall(r"VmHWM:\s*(\d+) kB", Path("/proc/self/status").read_text())
    return int(peak) / 1024


def by_orch(cluster: Any, path: str) -> int:
    from orchestrator.targets.kubernetes.api.exec import PodExec

    with PodExec(cluster, "reader").open_program(("cat", path)) as program:
        return sum(map(len, iter(lambda: program.output.read(MIB), b"")))


def by_client(cluster: Any, path: str) -> int:
    from kubernetes import client
    from kubernetes.stream import stream

    call = client.CoreV1Api(cluster.client).connect_get_namespaced_pod_exec
    streams = {"stdin": False, "stdout": True, "stderr": True, "tty": False, "binary": True, "_preload_content": False}
    connection = stream(call, "reader", "team", command=["cat", path], **streams)
    size = 0
    while connection.is_open() or connection.peek_stdout():
        connection.update(timeout=1)
        size += len(connection.read_stdout())
    connection.close()
    return size


if __name__ == "__main__":
    main()
