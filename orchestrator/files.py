"""Where orch keeps files on this machine, and how it reads and writes them: paths, owners, hashes, atomic writes.

The state folder of an inventory holds recorded facts, the cluster's key, logs and a lock.
"""

from __future__ import annotations

import contextlib
import fcntl
import gzip
import hashlib
import importlib.metadata
import logging
import os
import re
import secrets
import shutil
import socket
import stat
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import IO, BinaryIO

from orch_node import atomic_write, permissions
from orch_node.standalone import receive_files

from orchestrator.errors import ExecuteError, RequestError

PACKAGE = Path(__file__).resolve().parent
# The folders train/, inventory/ and playbooks/ are inside the package in a wheel, and next to it in a checkout.
SHARE = PACKAGE / "share" if (PACKAGE / "share").is_dir() else PACKAGE.parent
TRAIN = SHARE / "train"
LIB = TRAIN / "lib"  # packages that the nodes import, too
RECIPES = TRAIN / "recipes"
STANDALONE = LIB / "orch_node" / "standalone"
INVENTORY = SHARE / "inventory"
STACKS = PACKAGE / "stacks" / "data"
TEMPLATES = PACKAGE / "templates"
CHUNK = 1 << 20
ROOT = 0  # the user who can write everything anyway
PUBLIC = 0o666  # before the umask
MAX_LOGS = 20
MAX_HOLDER = 200  # characters about the holder of a lock
NODES = "nodes"  # in the state of an inventory: the folder of the records
TOKEN = re.compile(r"[0-9a-f]{32}")
PROGRESS = logging.getLogger(__name__)
HOME_FOLDERS = {"XDG_STATE_HOME": ".local/state/orch", "XDG_CACHE_HOME": ".cache/orch"}


tomllib = importlib.import_module("tomllib" if sys.version_info >= (3, 11) else "tomli")
entry_points = cache(importlib.metadata.entry_points)  # takes 10 ms to read
# Controller and nodes share these functions.
write_whole = atomic_write.write
sync_folder = atomic_write.sync_folder
sha256 = receive_files.digest


def render_template(file: str, **values: object) -> str:
    """Return the text of a template that is not HTML, with the values filled in."""
    import jinja2  # here, because few commands need it

    environment = jinja2.Environment(  # noqa: S701  not HTML
        loader=jinja2.PackageLoader("orchestrator"),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        keep_trailing_newline=True,
    )
    return environment.get_template(file).render(values)


@contextlib.contextmanager
def exclusive(path: Path) -> Iterator[None]:
    """Hold the lock of a file, for which other processes wait."""
    with path.open("a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def write_all(file: BinaryIO, content: bytes) -> None:
    """Write content to an unbuffered file."""
    while content:
        content = content[file.write(content) :]


def link_or_copy(source: Path, target: Path) -> None:
    """Hard-link a file if the file system allows it, otherwise copy it."""
    try:
        os.link(source, target)
    except OSError:
        shutil.copyfile(source, target)


def git(folder: Path, *arguments: str, seconds: float | None = None) -> str:
    """Return the output of a git command.

    Raises:
        RequestError: if git is missing or fails.
        subprocess.TimeoutExpired: if it takes longer than `seconds`.
    """
    hint = "Repair the repository, or send the script alone with --project none."
    command = ["git", "--no-optional-locks", "-C", str(folder), *arguments]
    try:
        result = subprocess.run(command, capture_output=True, timeout=seconds)
    except OSError as error:
        raise RequestError(f"git cannot be run for {folder}: {error.strerror}.", hint=hint) from None
    if result.returncode:
        lines = result.stderr.decode(errors="replace").strip().splitlines() or [f"exit code {result.returncode}"]
        raise RequestError(f"git {arguments[0]} in {folder}: {lines[0]}.", hint=hint)
    return os.fsdecode(result.stdout)


def short_digest(paths: Iterable[Path], base: Path) -> str:
    """Return 12 hexadecimal digits of the SHA-256 of files: their names below base, and their contents."""
    total = hashlib.sha256()
    for path in paths:
        total.update(str(path.relative_to(base)).encode() + path.read_bytes())
    return total.hexdigest()[:12]


def pack_files(target: IO[bytes], folder: Path, paths: Iterable[Path]) -> None:
    """Write files below a folder as a reproducible gzipped tar archive; links of any kind stay links.

    Raises:
        OSError: if a file cannot be read.
    """
    with (
        gzip.GzipFile(fileobj=target, mode="wb", mtime=0, compresslevel=1) as zipped,
        tarfile.open(fileobj=zipped, mode="w") as archive,
    ):
        for path in paths:
            archive.add(path, path.relative_to(folder), filter=anonymize)


def source_files(folder: Path) -> list[Path]:
    """Return all files in a folder except bytecode, sorted."""
    return sorted(path for path in folder.rglob("*") if path.is_file() and "__pycache__" not in path.parts)


def anonymize(member: tarfile.TarInfo) -> tarfile.TarInfo:
    """Remove owner and time from an archive member, and normalize its mode."""
    member.uid, member.gid, member.mtime = 0, 0, 315_619_200  # the 2nd of January 1980: ZIP has no times before 1980
    member.uname = member.gname = ""
    member.mode = 0o755 if member.mode & 0o100 else 0o644
    return member


def other_owner(path: Path) -> str:
    """Return the owner of a file, or of a link to it, unless that is this user or root.

    Files of other users are not trusted. The result is empty if the owner is trusted or there is no such file.
    """
    for status in (path.stat, path.lstat):
        try:
            uid = status().st_uid
        except OSError:
            continue
        if uid not in (os.getuid(), ROOT):
            return permissions.user_name(uid)
    return ""


def make_user_folder(path: Path) -> Path:
    """Create a folder and its missing parents for this user only, and flush them to disk.

    Raises:
        OSError: if a folder cannot be created.
    """
    if path.is_dir():
        return path
    missing = [folder for folder in (path, *path.parents) if not folder.exists()]
    for folder in reversed(missing):
        folder.mkdir(mode=0o700, exist_ok=True)
        sync_folder(folder.parent)
    return path


def user_folder(variable: str) -> Path:
    """Return orch's folder in the variable's absolute path, else in the home, else in a private temporary folder.

    Raises:
        ExecuteError: if none of these can be used.
    """
    value = Path(os.environ.get(variable, ""))
    folder = value / "orch" if value.is_absolute() else folder_in_home(HOME_FOLDERS[variable])
    return check_owner(folder) if folder else fallback_home() / HOME_FOLDERS[variable]


state_home = partial(user_folder, "XDG_STATE_HOME")
cache_home = partial(user_folder, "XDG_CACHE_HOME")


def check_owner(folder: Path) -> Path:
    """Return the folder.

    Raises:
        ExecuteError: if another user owns it and could change the commands, keys and ssh settings that orch reads.
    """
    if owner := other_owner(folder):
        raise ExecuteError.about("folder-of-another", folder=folder, owner=owner)
    return folder


def private_folder(folder: Path) -> Path:
    """Create a folder that only this user can read, with its parents inside orch's state or cache folder."""
    home = next((base for base in (state_home(), cache_home()) if folder.is_relative_to(base)), folder)
    home.parent.mkdir(parents=True, exist_ok=True)
    for path in reversed([folder, *folder.parents]):
        if path.is_relative_to(home):
            path.mkdir(mode=0o700, exist_ok=True)
            status = path.stat()
            if status.st_uid == os.getuid() and status.st_mode & 0o077:  # created with a wide umask
                path.chmod(0o700)
    return folder


def folder_in_home(name: str) -> Path | None:
    """Return a folder in the user's home if it can be written, or created because the home exists."""
    try:
        home = Path.home()
    except RuntimeError:  # HOME is not set, and the system does not know this user
        return None
    folder = home / name
    existing = (path for path in (folder, *folder.parents) if path.is_relative_to(home) and path.is_dir())
    nearest = next(existing, None)
    return folder if nearest and os.access(nearest, os.W_OK | os.X_OK) else None


def fallback_home() -> Path:
    """Return a private temporary folder that replaces an unusable home.

    Raises:
        ExecuteError: if the folder cannot be created or others may access it.
    """
    folder = Path(tempfile.gettempdir()) / f"orch-home-{os.getuid()}"
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
        status = folder.lstat()
        is_private = stat.S_ISDIR(status.st_mode) and not status.st_mode & 0o077 and status.st_uid == os.getuid()
        problem = "" if is_private else f"others may access {folder}"
    except OSError as error:
        problem = f"{folder} cannot be created: {error.strerror}"
    if problem:
        raise ExecuteError.about("home-folder", problem=problem)
    note_fallback(folder)
    return folder


@cache  # once in a process
def note_fallback(folder: Path) -> None:
    PROGRESS.info("note: the home directory is not writable; using %s", folder)


def ansible_home() -> dict[str, str]:
    """Return the environment variable that moves Ansible's folder if it cannot be in the home."""
    if "ANSIBLE_HOME" in os.environ:
        return {}
    if folder := folder_in_home(".ansible"):
        check_owner(folder)
        return {}
    return {"ANSIBLE_HOME": str(fallback_home() / ".ansible")}


@dataclass(frozen=True, slots=True, kw_only=True)
class State:
    """The state folder of one inventory."""

    folder: Path

    @staticmethod
    def of(inventory: Path) -> State:
        """Return the state of an inventory; its folder has the inventory's name and a hash of the path."""
        source = inventory.resolve()
        digest = hashlib.sha256(os.fsencode(source)).hexdigest()[:10]
        return State(folder=state_home() / "clusters" / f"{source.stem}-{digest}")

    def record(self, host: str) -> Path:
        """Return the file with the recorded facts of a host."""
        return self.folder / NODES / f"{host}.json"

    def ssh_config_is_current(self) -> bool:
        """Return whether the ssh configuration is newer than every record."""
        try:
            return self.ssh_config.stat().st_mtime_ns > (self.folder / NODES).stat().st_mtime_ns
        except FileNotFoundError:
            return False

    @property
    def ssh_config(self) -> Path:
        """Return the file with the ssh settings of orch's own connections, the same as Ansible's."""
        return self.folder / "ssh_config"

    @property
    def trust(self) -> Path:
        return self.folder / "trust"

    def log(self, command: str) -> Path:
        """Create a log file and delete the oldest ones."""
        folder = private_folder(self.folder / "logs")
        for old in sorted(folder.glob("*.log"))[: -MAX_LOGS + 1]:
            old.unlink(missing_ok=True)
        path = folder / f"{time.strftime('%Y%m%d-%H%M%S')}-{command}-{os.getpid()}.log"
        path.touch(mode=0o600)
        return path

    @contextlib.contextmanager
    def lock(self, action: str) -> Iterator[None]:
        """Hold the cluster's lock, so that one command at a time changes it.

        Raises:
            ExecuteError: naming the holder, if the lock is held.
        """
        private_folder(self.folder)
        path = self.folder / "lock"
        path.touch(mode=0o600)
        with path.open("a+") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                file.seek(0)
                raise ExecuteError.about("locked-cluster", holder=file.read(MAX_HOLDER) or "unknown process") from None
            file.truncate(0)
            file.write("{what} of {user}@{host}, process {pid}, since {since}".format(**holder(action)))
            file.flush()
            yield
            file.truncate(0)

    def owner(self, action: str) -> dict[str, str]:
        """Return what identifies this controller to the nodes; the token survives an interrupted command."""
        path = self.folder / "token"
        if not path.exists() or not TOKEN.fullmatch(path.read_text(errors="replace")):
            write_private(path, secrets.token_hex(16))
        return {"token": path.read_text(), **holder(action)}

    @property
    def cluster(self) -> str:
        """Return the cluster's name on its nodes, which is unique for each inventory."""
        return self.folder.name

    def write_trust(self, files: Mapping[str, str]) -> None:
        """Create the cluster's key pair if needed, and write files next to it."""
        private_folder(self.trust)
        key = self.trust / "id_ed25519"
        if not key.exists():
            command = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(key)]
            command += ["-C", f"orch cluster {self.cluster}"]
            subprocess.run(command, check=True, stdin=subprocess.DEVNULL, capture_output=True)
        for name, content in files.items():
            write_private(self.trust / name, content)


def holder(action: str) -> dict[str, str]:
    return {
        "what": action,
        "user": permissions.user_name(os.getuid()),
        "host": socket.gethostname(),
        "pid": str(os.getpid()),
        "since": time.strftime("%H:%M:%S"),
    }


def write_private(path: Path, content: str) -> None:
    """Write a file atomically, for this user only, and flush it to disk.

    Raises:
        OSError: if the file cannot be written.
    """
    private_folder(path.parent)
    write_whole(path, content)
