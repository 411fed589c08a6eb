"""The controller's copy of a run that lives on another node, renewed while it is watched."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Protocol, TypeVar

from orch_node.machine import Machine, was_rebooted
from orch_node.protocol import files
from orch_node.protocol import outcome as outcomes
from orch_node.protocol.outcome import SupervisorProcess
from orch_node.protocol.values import ProtocolError

from orchestrator.errors import ConnectionLost, ExecuteError
from orchestrator.files import ConfinedFolder, write_whole
from orchestrator.runs.follow import LAST_WORDS
from orchestrator.runs.state_files import outcome_in, supervisor_of
from orchestrator.runs.store import GONE

Result = TypeVar("Result")
RETRY_SECONDS = 2.0
GIVE_UP_SECONDS = 300.0
PROBE_SECONDS = 2.0
ABSENCES = 3  # probes in a row that did not find the supervisor
# Small files of a run that are worth having here; checkpoints and models stay on the nodes.
RESULTS = ("results.json", "metrics.jsonl", "predictions.json")
PIECE = 1 << 24  # bytes of a file that are read at a time
LARGEST_FILE = 1 << 36  # bytes that are kept of a log
LARGEST_NAME = 1 << 10  # of a host
LARGEST_STATE = 1 << 24  # of supervisor.json and outcome.json


class MirroredNode(Protocol):
    """What a mirror needs of the node that a run lives on."""

    def read(self, path: str, offset: int = 0, most: int | None = None) -> bytes | None: ...

    def size(self, path: str) -> int: ...

    def list(self, folder: str) -> list[str]: ...

    def alive(self, pid: int, marker: str) -> bool: ...

    def terminate(self, pid: int, marker: str) -> None: ...

    def refusal(self, folder: str) -> str: ...

    def reset(self) -> None: ...


class Mirror:
    """Copies RUN_DIR of a node into a folder here, new bytes only. The node may say what it likes:
    no file is written but those of this folder that a run of so many `ranks` has."""

    def __init__(self, remote: MirroredNode, run_dir: str, folder: Path, *, ranks: int) -> None:
        self.remote = remote
        self.run_dir = run_dir
        self.folder = folder
        self.ranks = ranks
        self.copy_of = ConfinedFolder(folder)
        self.probed = time.monotonic()
        self.absences = 0
        # What the arguments of the run's supervisor hold, and no pager's or editor's.
        self.marker = f"supervise\0{run_dir}\0"

    def refresh(self) -> None:
        """Bring over what is new of the events, and the supervisor's and the outcome's files."""
        self.append(files.EVENTS)
        if supervisor_of(self.folder) is None:
            self.copy(files.SUPERVISOR)
        if outcome_in(self.folder) is None:
            self.copy(files.OUTCOME)

    def append(self, name: str) -> None:
        """Add what the file has grown by since the last time.

        Several commands may watch a run at once: they write the same bytes to the same places.
        Raises ExecuteError.
        """
        try:
            have, path = self.copy_of.size(name), f"{self.run_dir}/{name}"
            end = min(self.remote.size(path), LARGEST_FILE)  # as it is now: it may have no end
            while have < end and (new := self.remote.read(path, have, min(PIECE, end - have))):
                self.copy_of.add(name, new, have)
                have += len(new)
        except OSError as error:
            raise ExecuteError(
                f"{self.folder / name} cannot be written: {error.strerror}.",
                hint="Links in a run's folder are not followed.",
            ) from None

    def copy(self, name: str) -> None:
        content = self.remote.read(f"{self.run_dir}/{name}", 0, LARGEST_STATE)
        if content is not None:
            write_whole(self.folder / name, content)

    def said(self) -> str:
        """The last words of a supervisor that did not start; or what kept it from writing any."""
        log = self.remote.read(f"{self.run_dir}/{files.SUPERVISOR_LOG}", 0, LARGEST_STATE) or b""
        words = log.decode(errors="replace")[-LAST_WORDS:].strip()
        return words or self.remote.refusal(self.run_dir)

    def lost(self, pid: int) -> bool:
        """Whether the supervisor has been gone for some seconds, without an outcome.

        It is asked every few seconds only, and one answer alone is not believed: a process that is
        just ending has no arguments any more, and its outcome may still be on the way.
        """
        if time.monotonic() - self.probed >= PROBE_SECONDS:
            self.probed = time.monotonic()
            recorded = supervisor_of(self.folder)
            unseen = recorded is not None and self.is_on_another_host(recorded)
            alive = unseen or self.remote.alive(pid, self.marker)
            self.absences = 0 if alive else self.absences + 1
        return self.absences >= ABSENCES

    def look_for_supervisor(self) -> None:
        """Note down if it is gone for good: it ended without an outcome."""
        supervisor = self.remote.read(f"{self.run_dir}/{files.SUPERVISOR}", 0, LARGEST_STATE)
        if supervisor is None or outcome_in(self.folder) is not None:
            return
        try:
            recorded = outcomes.parse_supervisor(supervisor)
        except ProtocolError:
            return
        if self.is_on_another_host(recorded):
            return
        if not self.remote.alive(recorded.pid, self.marker):
            self.copy(files.OUTCOME)  # it may just have come
            (self.folder / GONE).touch(0o600)

    def is_on_another_host(self, supervisor: SupervisorProcess) -> bool:
        """Return whether the connection leads to another host than that of the supervisor.

        One name may stand for several login nodes that share a folder.
        """
        if supervisor.identity is None:
            return False
        paths = ("/proc/sys/kernel/hostname", "/etc/machine-id", "/proc/sys/kernel/random/boot_id")
        texts = (self.remote.read(path, 0, LARGEST_NAME) or b"" for path in paths)
        host, machine_id, boot = (text.decode(errors="replace").strip() for text in texts)
        connected, recorded = Machine(host, machine_id, boot), supervisor.identity.machine
        return bool(boot) and boot != recorded.boot and not was_rebooted(recorded, connected)

    def terminate(self, pid: int) -> None:
        self.remote.terminate(pid, self.marker)

    def take_logs(self) -> None:
        """The logs of the ranks that ran on this node."""
        for name in self.listed(files.RANKS, files.OF_RANK):
            self.append(name)

    def listed(self, folder: str, pattern: re.Pattern[str]) -> list[str]:
        """The paths of the files there that are of ranks of the run."""
        names = self.remote.list(f"{self.run_dir}/{folder}")
        ranks = ((name, files.rank_of(name, pattern)) for name in names)
        return [f"{folder}/{name}" for name, rank in ranks if rank is not None and rank < self.ranks]

    def finish(self, output_dir: str | None) -> None:
        """When the run has ended: the launcher's words, the ranks' stacks, and the results."""
        self.refresh()
        stacks = self.listed(files.STACK_TRACES, files.STACK_TRACE)
        for name in (files.LAUNCHER_LOG, files.SUPERVISOR_LOG, *stacks):
            self.append(name)
        if output_dir == f"{self.run_dir}/output":
            for name in RESULTS:
                self.append(f"output/{name}")


class ReconnectingMirror:
    """A mirror whose connection may be lost: the run lives on, and is reached again.

    `tell` gets a line when the connection is lost and when it is back.
    """

    def __init__(self, mirror: Mirror, node: str, tell: Callable[[str], None]) -> None:
        self.mirror = mirror
        self.node = node
        self.tell = tell
        self.lost_since: float | None = None
        self.again_at = 0.0

    def refresh(self) -> None:
        self.attempt(self.mirror.refresh, None)

    def lost(self, pid: int) -> bool:
        """A run that cannot be asked is not believed to be gone."""
        return self.attempt(lambda: self.mirror.lost(pid), False)

    def terminate(self, pid: int) -> None:
        self.mirror.terminate(pid)

    def said(self) -> str:
        words = self.attempt(self.mirror.said, "")
        return f"{self.node}: {words}" if words else ""

    def attempt(self, act: Callable[[], Result], otherwise: Result) -> Result:
        """Raises ExecuteError when there has been no connection for too long."""
        if time.monotonic() < self.again_at:
            return otherwise
        try:
            result = act()
        except ConnectionLost as error:
            self.note_loss(error)
            return otherwise
        if self.lost_since is not None:
            away = time.monotonic() - self.lost_since
            self.tell(f"connected to {self.node} again after {away:.0f} s")
            self.lost_since = None
        return result

    def note_loss(self, error: ConnectionLost) -> None:
        now = time.monotonic()
        if self.lost_since is None:
            self.lost_since = now
            self.tell(f"{error.message}; the run goes on there, connecting again")
        if now - self.lost_since > GIVE_UP_SECONDS:
            raise ExecuteError(
                f"{self.node} has not been reached for {now - self.lost_since:.0f} s; the run may live on.",
                hint="orch attach shows it again, orch stop ends it on all nodes.",
            )
        self.mirror.remote.reset()
        self.again_at = now + RETRY_SECONDS
