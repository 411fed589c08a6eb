"""Start a program on another node of a run: over ssh, or with a program of the batch system.

sshd gives a command to the user's login shell. That may be csh or fish, which quote in other ways than sh, and its
start-up files may print: a message of the day, conda's activation, a prompt. What the shell prints before the output
of the program is dropped.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shlex
import shutil
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from orch_node import program
from orch_node.atomic_write import opened

SSH_CONFIG = program.ROOT / "ssh" / "config"  # written by `orch provision`
JOINING = "ORCH_JOINING"  # a variable with the command of the batch system that starts a launcher as part of the job
# A variable with a private folder of sockets: train/ssh lets launchers use the open connections of the agents, because
# a key exchange takes 0.1 s of processor time on both ends together.
SOCKETS = "ORCH_SSH_SOCKETS"
FOLDER_PREFIX = "orch-agents-"
NEW_SECONDS = 60.0  # a folder that is this new may have no lock yet
BY_STEP = "ORCH_BY_STEP"  # a variable with the command of the batch system, with {node} in it


def share_connections() -> None:
    """Let launchers use the connections that remote_command() opens with `shared`.

    The folder of the sockets is in /tmp because the path of a socket is short. Folders that a killed supervisor has
    left are removed.
    """
    if BY_STEP in os.environ:
        return
    with contextlib.suppress(OSError):
        for earlier_folder in Path("/tmp").glob(f"{FOLDER_PREFIX}*"):
            remove_unused(earlier_folder)
        folder = tempfile.mkdtemp(prefix=FOLDER_PREFIX, dir="/tmp")
        fcntl.flock(os.open(folder, os.O_RDONLY), fcntl.LOCK_SH)  # until this process ends
        os.environ[SOCKETS] = folder


def remove_unused(folder: Path) -> None:
    """Remove a folder of sockets of this user unless a process holds its lock."""
    flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW
    with contextlib.suppress(OSError), opened(folder, flags) as descriptor:
        is_new = time.time() - os.fstat(descriptor).st_mtime < NEW_SECONDS
        if os.fstat(descriptor).st_uid == os.getuid() and not is_new:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(folder, ignore_errors=True)


def end_sharing() -> None:
    """Remove the folder of the sockets."""
    if folder := os.environ.pop(SOCKETS, ""):
        shutil.rmtree(folder, ignore_errors=True)


def remote_command(node: str, argv: Sequence[str], variables: Sequence[str] = (), *, shared: bool = False) -> list[str]:
    """Return the command that runs a command on a node. Over ssh, its output follows the start marker.

    Args:
        node: the node.
        argv: what to run there.
        variables: NAME=VALUE each; ssh does not pass the environment on.
        shared: whether launchers may use the connection while the command runs.
    """
    if step := os.environ.get(BY_STEP):
        return [word.replace("{node}", node) for word in shlex.split(step)] + [*argv]
    remote = ["env", *variables, *argv] if variables else argv
    sockets = os.environ.get(SOCKETS, "") if shared else ""
    options = ["-o", "ControlMaster=auto", "-o", f"ControlPath={sockets}/%C"] if sockets else []
    return ["ssh", "-F", str(SSH_CONFIG), *options, "--", node, shell_command(remote)]


# The line before the output of a program, on its standard output and its standard error.
START_MARKER = b"orch:program-output\n"
# The quotes inside of the word keep the marker out of what a shell prints about this command (set -v, set -x). `exec`
# ends the login shell, so that it prints nothing after the program. The arguments are parts of the command, encoded for
# printf, which joins them.
SCRIPT = 'echo orch:program-"output"; echo orch:program-"output" >&2; eval "exec $(printf %b "$@")"'
PART_CHARACTERS = 50  # in a word: 20 bytes each outside of ASCII, and BSD's csh reads words of up to 1024 bytes
DROPPED_BYTES = 1000  # of the text before the marker that are kept for messages


def shell_command(argv: Sequence[str]) -> str:
    """Return the text with which any login shell runs a program behind a start marker.

    sh, csh, fish and zsh read a text in single quotes alike if it has no quotes, backslashes, exclamation marks and
    line breaks; printf's octal numbers stand for these.
    """
    command = shlex.join(argv)
    parts = [command[start : start + PART_CHARACTERS] for start in range(0, len(command), PART_CHARACTERS)]
    arguments = " ".join("'{}'".format("".join(map(encode, part))) for part in parts)
    return f"exec /bin/sh -c '{SCRIPT}' sh {arguments}"


def encode(character: str) -> str:
    r"""Return a character as printf's %b reads it, without what a login shell could interpret inside of quotes.

    fish reads '\\' as one backslash, but '\0' as it is.
    """
    if character.isascii() and character.isprintable() and character not in "'\\!":
        return character
    return "".join(f"\\0{byte:03o}" for byte in character.encode(errors="surrogateescape"))


def program_errors(text: str) -> str:
    """Return what a program has printed, from all that was printed to its standard error."""
    return text.rpartition(START_MARKER.decode())[2].strip()


class StartFilter:
    """Drop the bytes of a program's output up to the start marker.

    Attributes:
        started: whether the marker has been read.
    """

    def __init__(self) -> None:
        self.started = False
        self._dropped = b""  # its first DROPPED_BYTES, and an end that may be the beginning of the marker

    def output(self, part: bytes) -> bytes:
        """Return what belongs to the program in the next part of the output."""
        if self.started:
            return part
        dropped, marker, output = (self._dropped + part).partition(START_MARKER)
        self.started = bool(marker)
        self._dropped = dropped[:DROPPED_BYTES] + dropped[DROPPED_BYTES:][1 - len(START_MARKER) :]
        return output

    @property
    def dropped(self) -> str:
        """Return the beginning of what was printed before the marker."""
        return self._dropped[:DROPPED_BYTES].decode(errors="replace").strip()
