"""How fast, and with how much memory, a file comes out of a pod: orch's way over the websocket, and
that of the Kubernetes client, from the API server of the tests in a process of its own."""

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
CLIENTS = 32  # MiB: more takes minutes


def main() -> None:
    if len(sys.argv) > 1 and sys.argv[1] in ("orch", "client"):
        return fetch(*sys.argv[1:])
    repeats = arguments().repeats
    with tempfile.TemporaryDirectory() as name:
        ways = [("orch", size) for size in SIZES] + [("client", CLIENTS)]
        memory: dict[str, list[float]] = {}
        cases = {}
        for way, size in ways:
            path = Path(name) / str(size)
            with path.open("wb") as file:
                file.truncate(size * MIB)
            title = f"{way}, {size} MiB"
            cases[title] = functools.partial(rate, way, path, memory.setdefault(title, []))
        figures = interleaved(cases, repeats)
    base = f"orch, {SIZES[0]} MiB"
    report("A file out of a pod", "MB/s", figures, base)
    report("Memory of who fetches it", "MiB", memory, base)


def rate(way: str, path: Path, memory: list[float]) -> float:
    """MB/s."""
    command = [sys.executable, __file__, way, str(path)]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    taken, peak = map(float, done.stdout.split())
    memory.append(peak)
    return path.stat().st_size / 1e6 / taken


def fetch(way: str, path: str) -> None:
    """Seconds, and MiB at most."""
    serve = (
        "import sys; sys.path[:0] = sys.argv[1:]\n"
        "from tests.kube_api import Api\n"
        "with Api() as api: print(api.url, flush=True); sys.stdin.read()"
    )
    from tests.kube_api import client_of

    with subprocess.Popen(
        [sys.executable, "-c", serve, *sys.path[:2]], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as server:
        assert server.stdout is not None
        cluster = client_of(server.stdout.readline().strip())
        read = by_orch if way == "orch" else by_client
        read(cluster, __file__)  # all is imported then
        began = time.perf_counter()
        size = read(cluster, path)
        taken = time.perf_counter() - began
        assert server.stdin is not None
        server.stdin.close()
    assert size == Path(path).stat().st_size
    print(taken, most_memory())


def most_memory() -> float:
    """MiB, of this program alone."""
    (peak,) = re.findall(r"VmHWM:\s*(\d+) kB", Path("/proc/self/status").read_text())
    return int(peak) / 1024


def by_orch(cluster: Any, path: str) -> int:
    from orchestrator.targets.kubernetes.api.exec import PodExec

    return sum(map(len, PodExec(cluster, "reader").chunks(path, 0)))


def by_client(cluster: Any, path: str) -> int:
    from kubernetes import client
    from kubernetes.stream import stream

    found = stream(
        client.CoreV1Api(cluster.client).connect_get_namespaced_pod_exec,
        "reader",
        "team",
        command=["cat", path],
        stdin=False,
        stdout=True,
        stderr=True,
        tty=False,
        binary=True,
        _preload_content=False,
    )
    size = 0
    while found.is_open() or found.peek_stdout():
        found.update(timeout=1)
        size += len(found.read_stdout())
    found.close()
    return size


if __name__ == "__main__":
    main()
