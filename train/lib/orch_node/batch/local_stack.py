"""Unpack the stack to a local folder of each node, from an archive that all nodes see.

The job does so before the agents start: `node.py job-fill SYSTEM RUN_DIR` on each node.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from orch_node import program, tail
from orch_node.batch.system import NodeSystem, find_system
from orch_node.filled_folder import fill_once, sync
from orch_node.protocol import batch
from orch_node.protocol.batch import LocalStack
from orch_node.whole_files import private

CHUNK = 1 << 20
LOG = "local-stack.log"
MARK = "error: "
LOG_CHARACTERS = 1 << 16  # of the end of the log, in which the errors of nodes are looked for


class FillError(Exception):
    """A node cannot fill its folder. The text says why."""


def main(argv: list[str]) -> int:
    """Fill the folder of this node; return the exit code."""
    if len(argv) != 2:
        print("usage: node.py job-fill SYSTEM RUN_DIR", file=sys.stderr)
        return 2
    local = batch.parse((Path(argv[1]) / batch.CONFIG).read_text()).local
    assert local is not None
    node = find_system(argv[0]).node_name()
    try:
        new = fill(local)
    except (FillError, OSError) as error:
        print(f"{MARK}{node}: {local.folder}: {error}", file=sys.stderr)
        return 1
    print(f"{node}: {local.folder} {'filled' if new else 'already complete'}")
    return 0


def fill(local: LocalStack) -> bool:
    """Unpack the stack into its folder unless it is there; return whether it was unpacked now.

    Raises:
        FillError: if the archive cannot be unpacked or is not the planned one.
        UntrustedError: if another user could have written the folder.
        OSError: if the folder cannot be written.
    """
    return fill_once(Path(local.folder), local.sha256, lambda part: unpack(local, part))


def unpack(local: LocalStack, part: Path) -> None:
    """Unpack the archive into a folder, and check its hash.

    Raises:
        FillError: if tar fails or the archive is not the planned one.
        OSError: if the archive cannot be read.
    """
    total = hashlib.sha256()
    command = ["tar", "--extract", "--no-same-owner", "--directory", str(part)]
    with (
        open(local.archive, "rb") as archive,
        open(os.memfd_create("tar"), "w+b") as errors,  # tar prints one per file, more than a pipe can hold
        subprocess.Popen(command, stdin=subprocess.PIPE, stderr=errors) as tar,
    ):
        assert tar.stdin is not None
        try:
            with tar.stdin as pipe:
                while block := archive.read(CHUNK):
                    total.update(block)
                    pipe.write(block)
        except BrokenPipeError:  # tar has printed why
            pass
        code = tar.wait()
        errors.seek(0)
        reason = errors.readline().decode(errors="replace").strip()
    if code != 0:
        raise FillError(reason or f"tar ended with exit code {code}")
    if total.hexdigest() != local.sha256:
        raise FillError(
            f"{local.archive} does not have the planned content. Run `orch provision` again with the same settings"
        )
    sync(part)


def fill_nodes(system: NodeSystem, run_dir: Path, nodes: Sequence[str]) -> None:
    """Fill the folders of all nodes of the job at once.

    Raises:
        FillError: with the reasons of the first nodes that cannot.
    """
    command = program.command("job-fill", system.name, str(run_dir))
    log = run_dir / LOG
    with open(log, "wb", opener=private) as output:
        code = system.start_on_nodes(nodes, "orch-fill", command, {}, output).wait()
    if code != 0:
        lines = tail.last_text(log, LOG_CHARACTERS).strip().splitlines()
        errors = [line.removeprefix(MARK) for line in lines if line.startswith(MARK)]
        raise FillError("; ".join(errors[:3]) or (lines[-1] if lines else f"{system.starter} printed nothing"))
