"""What this machine keeps of each inventory: recorded facts, the cluster's key, logs, a lock."""

from __future__ import annotations

import contextlib
import fcntl
import getpass
import hashlib
import json
import os
import re
import secrets
import socket
import stat
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from orchestrator.errors import ExecuteError
from orchestrator.files import other_owner, write_whole

KEPT_LOGS = 20
TOKEN = re.compile(r"[0-9a-f]{32}")


def state_home() -> Path:
    return home_of("XDG_STATE_HOME", ".local/state")


def cache_home() -> Path:
    return home_of("XDG_CACHE_HOME", ".cache")


def home_of(variable: str, below: str) -> Path:
    """Where the variable says, or in the user's home; in a private folder where that cannot be.

    Raises ExecuteError where there can be none of these.
    """
    if named := os.environ.get(variable):
        return trusted(Path(named) / "orch")
    own = own_home()
    if own and writable(own, own / below / "orch"):
        return trusted(own / below / "orch")
    return stand_in() / below / "orch"


def trusted(folder: Path) -> Path:
    """The folder, unless another user may write what orch would read there: commands, keys, and how
    hosts are reached. Raises ExecuteError."""
    if other := other_owner(folder):
        raise ExecuteError(
            f"{folder} belongs to another user ({other}): what lies there is not trusted.",
            hint="Name folders of your own: XDG_STATE_HOME and XDG_CACHE_HOME.",
        )
    return folder


def private_folder(folder: Path) -> Path:
    """Make it, and what lies between it and the folder of orch, for this user alone."""
    home = next((one for one in (state_home(), cache_home()) if folder.is_relative_to(one)), folder)
    home.parent.mkdir(parents=True, exist_ok=True)
    for one in reversed([folder, *folder.parents]):
        if one.is_relative_to(home):
            one.mkdir(mode=0o700, exist_ok=True)
            close(one)
    return folder


def close(folder: Path) -> None:
    """To others, if an earlier version or a wide umask has left it open."""
    found = folder.stat()
    if found.st_uid == os.getuid() and found.st_mode & 0o077:
        folder.chmod(0o700)


def own_home() -> Path | None:
    try:
        return Path.home()
    except RuntimeError:  # HOME is not set, and the system does not know this user
        return None


def writable(home: Path, folder: Path) -> bool:
    """Whether the folder can be written, or made below a home that is there."""
    there = (one for one in (folder, *folder.parents) if one.is_relative_to(home) and one.is_dir())
    nearest = next(there, None)
    return nearest is not None and os.access(nearest, os.W_OK | os.X_OK)


def stand_in() -> Path:
    """A folder in the place of a home, of this user alone. Raises ExecuteError."""
    folder = Path(tempfile.gettempdir()) / f"orch-home-{os.getuid()}"
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
        found = folder.lstat()
    except OSError as error:
        raise no_home(f"{folder} cannot be made: {error.strerror}") from None
    private = stat.S_ISDIR(found.st_mode) and not found.st_mode & 0o077
    if not private or found.st_uid != os.getuid():
        raise no_home(f"{folder} is not this user's alone")
    return folder


def no_home(why: str) -> ExecuteError:
    return ExecuteError(
        f"The home folder cannot be written, and {why}.",
        hint="Name a folder that can be written: HOME=/path, or XDG_STATE_HOME and XDG_CACHE_HOME.",
    )


def away_from_home() -> bool:
    """Whether something that belongs into the home is kept in its stand-in."""
    own = own_home()
    homes = (("XDG_STATE_HOME", ".local/state"), ("XDG_CACHE_HOME", ".cache"))
    return any(
        not os.environ.get(variable) and not (own and writable(own, own / below / "orch")) for variable, below in homes
    )


def ansible_home() -> dict[str, str]:
    """Ansible's variable for its own folder, where it cannot be in the home."""
    if "ANSIBLE_HOME" in os.environ:
        return {}
    own = own_home()
    if own and writable(own, own / ".ansible"):
        trusted(own / ".ansible")
        return {}
    return {"ANSIBLE_HOME": str(stand_in() / ".ansible")}


def user_name() -> str:
    """A container may run as a user that has no name."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return str(os.getuid())


@dataclass(frozen=True, slots=True, kw_only=True)
class State:
    """The folder of one inventory."""

    folder: Path

    @staticmethod
    def of(inventory: Path) -> State:
        """Named so that a person finds it, and different for two inventories of one name."""
        source = inventory.resolve()
        digest = hashlib.sha256(str(source).encode()).hexdigest()[:10]
        return State(folder=state_home() / "clusters" / f"{source.stem}-{digest}")

    def record(self, host: str) -> Path:
        """The facts of one host."""
        return self.folder / "nodes" / f"{host}.json"

    def records(self) -> list[Path]:
        return sorted((self.folder / "nodes").glob("*.json"))

    def ssh_config_holds(self) -> bool:
        """Whether it was written after the newest record."""
        try:
            written = self.ssh_config.stat().st_mtime_ns
            return written > (self.folder / "nodes").stat().st_mtime_ns
        except FileNotFoundError:
            return False

    @property
    def ssh_config(self) -> Path:
        """How orch's own connections reach the nodes: as Ansible does."""
        return self.folder / "ssh_config"

    @property
    def trust(self) -> Path:
        return self.folder / "trust"

    def log(self, command: str) -> Path:
        """A new log file; only the newest are kept."""
        folder = private_folder(self.folder / "logs")
        for old in sorted(folder.glob("*.log"))[: -KEPT_LOGS + 1]:
            old.unlink(missing_ok=True)
        path = folder / f"{time.strftime('%Y%m%d-%H%M%S')}-{command}-{os.getpid()}.log"
        path.touch(mode=0o600)
        return path

    @contextlib.contextmanager
    def lock(self, what: str) -> Iterator[None]:
        """Only one at a time changes a cluster. Raises ExecuteError that names the holder."""
        private_folder(self.folder)
        held = self.folder / "lock"
        held.touch(mode=0o600)
        with held.open("a+") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                file.seek(0)
                raise ExecuteError(
                    f"This cluster is being changed already: {held_by(file.read())}.",
                    hint="Wait until that has ended, or stop it.",
                ) from None
            file.truncate(0)
            json.dump(holder(what), file)
            file.flush()
            yield
            file.truncate(0)

    def owner(self, what: str) -> dict[str, str]:
        """Who we are to the nodes. The token outlives us: interrupted, we carry on at once."""
        path = self.folder / "token"
        if not path.exists() or not TOKEN.fullmatch(path.read_text(errors="replace")):
            write_private(path, secrets.token_hex(16))
        return {"token": path.read_text(), **holder(what)}

    def write_trust(self, cluster: str, files: Mapping[str, str]) -> None:
        """The cluster's key pair, made once, and the files beside it."""
        private_folder(self.trust)
        key = self.trust / "id_ed25519"
        if not key.exists():
            command = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(key)]
            command += ["-C", f"orch cluster {cluster}"]
            subprocess.run(command, check=True, stdin=subprocess.DEVNULL, capture_output=True)
        for name, content in files.items():
            write_private(self.trust / name, content)


def holder(what: str) -> dict[str, str]:
    return {
        "what": what,
        "user": user_name(),
        "host": socket.gethostname(),
        "pid": str(os.getpid()),
        "since": time.strftime("%H:%M:%S"),
    }


def held_by(text: str) -> str:
    try:
        found = json.loads(text)
        return "{what} of {user}@{host}, process {pid}, since {since}".format(**found)
    except (ValueError, RecursionError, TypeError, KeyError):
        return "by another process"


def write_private(path: Path, content: str) -> None:
    """Whole, on the disk, and for this user alone. Raises OSError."""
    private_folder(path.parent)
    write_whole(path, content)
