"""Copy the files of a run from its node to this machine while the run is being watched."""

from __future__ import annotations

import time
from base64 import b64decode
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from orch_node.machine import Machine, was_rebooted
from orch_node.protocol import files, outcome, values
from orch_node.protocol.node_reports import NodeLogs

from orchestrator.errors import ConnectionLost, ExecuteError
from orchestrator.files import write_whole
from orchestrator.runs.confined_folder import ConfinedFolder
from orchestrator.runs.follow import MAX_LOG_CHARACTERS
from orchestrator.runs.state_files import outcome_in, supervisor_of
from orchestrator.runs.store import SUPERVISOR_ENDED, UNFETCHED, Notify, cli_arguments
from orchestrator.targets.connections.connection import Result, Ssh

RETRY_SECONDS = 2.0
GIVE_UP_SECONDS = 300.0
PROBE_SECONDS = 2.0
MISSED_PROBES = 3  # consecutive probes that must miss the supervisor before it counts as gone
# Only small results are copied to this machine; checkpoints and models stay on the nodes.
RESULTS = ("results.json", "metrics.jsonl", "predictions.json")
CHUNK_BYTES = 1 << 24  # bytes of a file that are read per request
MAX_LOG_BYTES = 1 << 36
MAX_HANDED_BYTES = 1 << 27
MAX_HOST_NAME_BYTES = 1 << 10
MAX_STATE_BYTES = 1 << 24  # of supervisor.json and outcome.json


class Mirror:
    """A local copy of a run's folder, to which only new bytes are transferred.

    The node is not trusted: only files that a run of `ranks` ranks has are written, and only in the local folder.
    The methods of `Source` connect again after the connection is lost, and do nothing while it is; the others raise
    ConnectionLost.

    Attributes:
        notify: called with one line when the connection is lost, and when it is restored.
        lost_since: when the connection was lost, or None while it is open.
        next_attempt: when to connect again.
    """

    def __init__(self, remote: Ssh, run_dir: str, folder: Path, *, ranks: int, notify: Notify = lambda _: None) -> None:
        self.remote = remote
        self.run_dir = run_dir
        self.folder = folder
        self.ranks = ranks
        self.notify = notify
        self.lost_since: float | None = None
        self.next_attempt = 0.0
        self.local_files = ConfinedFolder(folder)
        self.last_probe = time.monotonic()
        self.missed_probes = 0
        # Only the arguments of the run's supervisor contain this, not those of a pager or an editor.
        self.marker = f"supervise\0{run_dir}\0"

    def refresh(self) -> None:
        """Copy the state of the run, unless the node cannot be reached now."""
        self.attempt(self.copy_state, None)

    def copy_state(self) -> None:
        """Copy the new events, and the supervisor's and the outcome's files if they are still missing."""
        self.append(files.EVENTS)
        if supervisor_of(self.folder) is None:
            self.copy(files.SUPERVISOR)
        if outcome_in(self.folder) is None:
            self.mark_unfetched()
            self.copy(files.OUTCOME)

    def mark_unfetched(self) -> None:
        """Record that the local folder may get an outcome before it has the logs, which finish() copies."""
        with self.local_files.writing(UNFETCHED):
            (self.folder / UNFETCHED).touch(0o600)

    def append(self, name: str, local_name: str | None = None, size: int | None = None) -> None:
        """Copy the bytes that a file has grown by since the last time, to the same path unless another is named.

        Several commands may watch a run at the same time: they write the same bytes at the same
        offsets.

        Raises:
            ExecuteError: if the file cannot be read from the node or written here.
        """
        local_name = local_name or name
        with self.local_files.writing(local_name):
            offset = self.local_files.size(local_name)
            is_complete = size is not None and size <= offset
            while not is_complete and offset < MAX_LOG_BYTES:
                content = self.remote.read(f"{self.run_dir}/{name}", offset, CHUNK_BYTES) or b""
                if content:
                    self.local_files.add(local_name, content, offset)
                offset += len(content)
                is_complete = len(content) < CHUNK_BYTES

    def content(self, name: str) -> bytes | None:
        """Return the content of a small file on the node, or None if it does not exist."""
        return self.remote.read(f"{self.run_dir}/{name}", 0, MAX_STATE_BYTES)

    def copy(self, name: str) -> None:
        """Copy a small file whole, if the node has it."""
        content = self.content(name)
        if content is not None:
            with self.local_files.writing(name):
                write_whole(self.folder / name, content)

    def supervisor_output(self) -> str:
        """Return the end of the supervisor's log, or why the node could not write it; '' if it is unreachable."""

        def read() -> str:
            log = (self.content(files.SUPERVISOR_LOG) or b"").decode(errors="replace")[-MAX_LOG_CHARACTERS:].strip()
            return log or self.remote.write_problem(self.run_dir)

        message = self.attempt(read, "")
        return f"{self.remote.node}: {message}" if message else ""

    def lost(self, pid: int) -> bool:
        """Return whether the supervisor has been gone for some seconds while the node was reachable.

        The node is probed once every PROBE_SECONDS. Several probes must miss the supervisor, because
        an ending process has lost its arguments, and its outcome may not have been copied yet.
        """

        def is_alive() -> bool:
            recorded = supervisor_of(self.folder)
            is_elsewhere = recorded is not None and self.is_on_another_host(recorded)
            return is_elsewhere or self.remote.alive(pid, self.marker)

        if time.monotonic() - self.last_probe >= PROBE_SECONDS:
            self.last_probe = time.monotonic()
            self.missed_probes = 0 if self.attempt(is_alive, True) else self.missed_probes + 1
        return self.missed_probes >= MISSED_PROBES

    def record_supervisor_end(self) -> None:
        """Record that the supervisor has ended if the run has no outcome."""
        supervisor = self.content(files.SUPERVISOR)
        if supervisor is None or outcome_in(self.folder) is not None:
            return
        with suppress(values.ProtocolError):
            recorded = outcome.parse_supervisor(supervisor)
            if not self.is_on_another_host(recorded) and not self.remote.alive(recorded.pid, self.marker):
                self.copy(files.OUTCOME)  # the outcome may have been written since the check above
                (self.folder / SUPERVISOR_ENDED).touch(0o600)

    def is_on_another_host(self, supervisor: outcome.SupervisorProcess) -> bool:
        """Return whether the connection leads to another host than that of the supervisor.

        One name may stand for several login nodes that share a folder.
        """
        if supervisor.identity is None:
            return False
        paths = ("/proc/sys/kernel/hostname", "/etc/machine-id", "/proc/sys/kernel/random/boot_id")
        texts = (self.remote.read(path, 0, MAX_HOST_NAME_BYTES) or b"" for path in paths)
        host, machine_id, boot = (text.decode(errors="replace").strip() for text in texts)
        recorded = supervisor.identity.machine
        connected = Machine(host, machine_id, boot, recorded.pid_namespace)  # ssh leads to hosts, not to containers
        return bool(boot) and boot != recorded.boot and not was_rebooted(recorded, connected)

    def terminate(self, pid: int) -> None:
        """Ask the supervisor to end the run; raise ConnectionLost if the node is unreachable."""
        self.remote.terminate(pid, self.marker)

    def copy_logs(self, rank: int | None = None, folder_of: Callable[[int], str] = lambda rank: files.RANKS) -> None:
        """Copy the logs of the ranks that ran on this node, or of one of them.

        Args:
            rank: the rank; None for all ranks.
            folder_of: returns the local folder for the logs of a rank from this node.
        """
        for name, size in self.remote.sizes(f"{self.run_dir}/{files.RANKS}").items():
            number = files.rank_of(name)
            if number is not None and number < self.ranks and rank in (None, number):
                self.append(f"{files.RANKS}/{name}", f"{folder_of(number)}/{name}", size)

    def copy_handed_logs(self, folder_of: Callable[[int, str], str]) -> set[str]:
        """Copy the logs that agents of other nodes have handed to this node, if the run has ended.

        Args:
            folder_of: returns the local folder for the logs of a rank from a node; '' for an unknown node.

        Returns:
            The nodes whose logs are complete here.
        """
        if outcome_in(self.folder) is None:
            return set()
        content = self.remote.read(f"{self.run_dir}/{files.HANDED_LOGS}", 0, MAX_HANDED_BYTES) or b""
        complete = set()
        for line in content.splitlines():
            try:
                handed = values.parse(NodeLogs, line, files.HANDED_LOGS)
                contents = {name: b64decode(text, validate=True) for name, text in handed.files.items()}
            except (values.ProtocolError, ValueError):
                continue
            if not folder_of(0, handed.node):
                continue
            for name, content in contents.items():
                rank = files.rank_of(name)
                if rank is not None and rank < self.ranks:
                    local_name = f"{folder_of(rank, handed.node)}/{name}"
                    with self.local_files.writing(local_name):
                        offset = self.local_files.size(local_name)
                        self.local_files.add(local_name, content[offset:], offset)
            complete.add(handed.node)
        return complete

    def finish(self, output_dir: str | None) -> None:
        """Copy the launcher's log, the ranks' stack traces and the results of a run that has ended."""
        self.copy_state()
        for name in (files.LAUNCHER_LOG, files.SUPERVISOR_LOG):
            self.append(name)
        for name in self.remote.sizes(f"{self.run_dir}/{files.STACK_TRACES}"):
            rank = files.rank_of(name, files.STACK_TRACE)
            if rank is not None and rank < self.ranks:
                self.append(f"{files.STACK_TRACES}/{name}")
        if output_dir == f"{self.run_dir}/output":
            for name in RESULTS:
                self.append(f"output/{name}")
        (self.folder / UNFETCHED).unlink(missing_ok=True)

    def attempt(self, action: Callable[[], Result], fallback: Result) -> Result:
        """Return the result of an action, or `fallback` while the node is unreachable.

        Raises:
            ExecuteError: if the node has been unreachable for GIVE_UP_SECONDS.
        """
        if time.monotonic() < self.next_attempt:
            return fallback
        try:
            result = action()
        except ConnectionLost as error:
            self.handle_loss(error)
            return fallback
        if self.lost_since is not None:
            seconds = time.monotonic() - self.lost_since
            self.notify(f"connected to {self.remote.node} again after {seconds:.0f} s")
            self.lost_since = None
        return result

    def handle_loss(self, error: ConnectionLost) -> None:
        """Schedule the next attempt to connect; raise ExecuteError after GIVE_UP_SECONDS."""
        now = time.monotonic()
        if self.lost_since is None:
            self.lost_since = now
            self.notify(f"{error.message}; the run continues there, reconnecting")
        seconds = now - self.lost_since
        if seconds > GIVE_UP_SECONDS:
            arguments = cli_arguments(self.folder)
            raise ExecuteError.about("lost-node", node=self.remote.node, seconds=seconds, arguments=arguments)
        self.remote.close()
        self.next_attempt = now + RETRY_SECONDS
