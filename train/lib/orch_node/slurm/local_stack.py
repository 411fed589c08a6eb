"""A folder of each node's own with the stack, filled from one archive that all nodes see: one step
of the job, before its agents. `node.py slurm-fill RUN_DIR` is its task on a node."""

from __future__ import annotations

import ctypes
import hashlib
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from orch_node import program, tail
from orch_node.filled_folder import fill_once
from orch_node.protocol import slurm
from orch_node.protocol.slurm import LocalStack
from orch_node.slurm.words import STEP, one_task_each
from orch_node.whole_files import private

CHUNK = 1 << 20
LOG = "local-stack.log"
MARK = "error: "
LOG_CHARACTERS = 1 << 16  # of the end of the log, in which the errors of nodes are looked for


class FillError(Exception):
    """Why a node has no such folder, in one sentence."""


def main(argv: list[str]) -> int:
    if len(argv) != 1:
        print("usage: node.py slurm-fill RUN_DIR", file=sys.stderr)
        return 2
    local = slurm.parse((Path(argv[0]) / slurm.CONFIG).read_text()).local
    assert local is not None
    node = os.environ["SLURMD_NODENAME"]
    try:
        new = fill(local)
    except (FillError, OSError) as error:
        print(f"{MARK}{node}: {local.folder}: {error}", file=sys.stderr)
        return 1
    print(f"{node}: {local.folder} {'is filled' if new else 'was there'}")
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
    """Raises FillError, OSError."""
    total = hashlib.sha256()
    words = ["tar", "--extract", "--no-same-owner", "--directory", str(part)]
    with (
        open(local.archive, "rb") as archive,
        open(os.memfd_create("tar"), "w+b") as complaints,  # one for each file: a pipe has no room
        subprocess.Popen(words, stdin=subprocess.PIPE, stderr=complaints) as tar,
    ):
        assert tar.stdin is not None
        try:
            with tar.stdin as pipe:
                while block := archive.read(CHUNK):
                    total.update(block)
                    pipe.write(block)
        except BrokenPipeError:  # it says why
            pass
        code = tar.wait()
        complaints.seek(0)
        said = complaints.readline().decode(errors="replace").strip()
    if code != 0:
        raise FillError(said or f"tar ended with exit code {code}")
    if total.hexdigest() != local.sha256:
        raise FillError(f"{local.archive} is not what was packed. `orch provision --on slurm` packs it anew")
    sync(part)


def sync(folder: Path) -> None:
    """What is named by its content is on the disk, also after the power fails."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        ctypes.CDLL(None).syncfs(descriptor)
    finally:
        os.close(descriptor)


def fill_nodes(run_dir: Path, nodes: Sequence[str]) -> None:
    """On all nodes of the job at once. Raises FillError with the words of the first that cannot."""
    task = program.command("slurm-fill", str(run_dir))
    log = run_dir / LOG
    with open(log, "wb", opener=private) as words:
        done = subprocess.run(
            ["srun", *STEP, *one_task_each(nodes), "--job-name=orch-fill", *task],
            stdin=subprocess.DEVNULL,
            stdout=words,
            stderr=words,
        )
    if done.returncode != 0:
        output = tail.last_text(log, LOG_CHARACTERS).strip().splitlines()
        errors = [line.removeprefix(MARK) for line in output if line.startswith(MARK)]
        raise FillError("; ".join(errors[:3]) or (output[-1] if output else "srun printed nothing"))
