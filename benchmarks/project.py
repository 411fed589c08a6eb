"""Measure how long a start over SSH takes with a project: not changed, changed, and large.

The hosts are namespaces of this machine (tests/support/hosts.py; needs root). A start is the time from the call of
`orch.train` until the ranks are launched. Sending to all hosts is compared with sending to one. With --mbit, this
machine sends to each host at most at that rate, as a laptop outside of the hosts' network does.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from measure import arguments, interleaved, report

if TYPE_CHECKING:
    from tests.support.hosts import Hosts

REPOSITORY = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(REPOSITORY), str(REPOSITORY / "train/lib")]
SCRIPT = "import torch.distributed as dist\ndist.barrier()\n"
FILES, FILE_BYTES = 1000, 10_000
PART_BYTES = 10_000_000
NONE = "--project none"


def main() -> None:
    settings = arguments(megabytes=200, hosts=2, mbit=0)
    from tests.conftest import orch_environment
    from tests.support.hosts import Hosts

    with tempfile.TemporaryDirectory() as name, contextlib.ExitStack() as stack:
        folder = Path(name)
        os.environ |= orch_environment(folder)
        lab = Hosts(folder / ".hosts", settings.hosts)
        stack.callback(lab.stop)
        if settings.mbit:
            limit_rate(lab, settings.mbit)
        inventory = lab.write_inventory(dict(os.environ))
        code, large = folder / "code", folder / "large"
        write_project(code, FILES, FILE_BYTES)
        write_project(large, settings.megabytes * 1_000_000 // PART_BYTES, PART_BYTES)
        train = partial(start, inventory)
        cases = {
            NONE: partial(train, code, project="none"),
            f"{FILES} files, 10 MB, not changed": partial(train, code),
            f"{FILES} files, 10 MB, one changed": partial(train, code, change=True),
        }
        start(inventory, code)
        report("Start on two hosts", "s", interleaved(cases, settings.repeats), NONE)
        cases = {
            f"{settings.megabytes} MB to one host": partial(train, large, nodes=1, change=True),
            f"{settings.megabytes} MB to {settings.hosts} hosts": partial(
                train, large, nodes=settings.hosts, change=True
            ),
        }
        report("Send a project that does not compress", "s", interleaved(cases, settings.repeats), next(iter(cases)))


def limit_rate(lab: Hosts, mbit: int) -> None:
    """Limit what this machine sends to each host, in Mbit/s; the network between the hosts is not limited."""
    for index in range(len(lab.hosts)):
        device = f"{lab.interface_prefix}w{index}"
        limits = ("rate", f"{mbit}mbit", "burst", "256kb", "latency", "50ms")
        subprocess.run(["tc", "qdisc", "add", "dev", device, "root", "tbf", *limits], check=True)


def write_project(folder: Path, files: int, size: int) -> None:
    """Write a script and files of random bytes."""
    folder.mkdir()
    (folder / "train.py").write_text(SCRIPT)
    for index in range(files):
        (folder / f"part{index}.bin").write_bytes(os.urandom(size))


def start(inventory: Path, folder: Path, *, nodes: int = 2, change: bool = False, project: str | None = None) -> float:
    """Return the seconds until the ranks of a run are launched; wait for its end."""
    import orch

    if change:
        (folder / "part0.bin").write_bytes(os.urandom(FILE_BYTES))
    options = {} if project is None else {"project": project}
    began = time.perf_counter()
    run = orch.train(
        folder / "train.py",
        inventory=inventory,
        nodes=nodes,
        ppn=1,
        backend="gloo",
        launcher="torchrun",
        project_limit=1000,
        runs_dir=folder.parent / "runs",
        **options,
    )
    next(event for event in run.events() if event.name == "launched")
    seconds = time.perf_counter() - began
    assert run.wait().state == "done"
    return seconds


if __name__ == "__main__":
    main()
