"""Send the files that node0 has written in a run's copy of the project to the other nodes, before a restart.

"Rank 0 saves, all ranks load" then works on nodes that share no folder. The supervisor starts this program and kills it
to cancel the transfer: `node.py share-files RUN_DIR ATTEMPT NODE... [--leaving NODE...]`. It also runs on node0 of the
last attempt before a resume whose node0 is another node. It prints which files were sent to which nodes and which files
of these nodes were renamed, and to standard error why the files are not the same on all nodes.
"""

from __future__ import annotations

import contextlib
import os
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path, PurePosixPath

from orch_node import content_store, program, reach, run_files
from orch_node.content_store import StoreError
from orch_node.protocol import files, values
from orch_node.protocol.node_names import fold
from orch_node.protocol.values import ProtocolError
from orch_node.reach import StartFilter
from orch_node.run_files import Received, Written
from orch_node.standalone import receive_files

MAX_BYTES = 100 * 10**9  # of the files that node0 gives to a node
LIMIT = f"limit {MAX_BYTES / 1e9:.0f} GB"
MAX_NAMES = 5  # in a message
LEAVING = "--leaving"  # before nodes of earlier attempts alone


def main(argv: list[str]) -> int:
    """Give the files of this node to others; return the exit code."""
    run_dir, attempt, *nodes = argv
    split = nodes.index(LEAVING) if LEAVING in nodes else len(nodes)
    sharing = FileSharing(Path(run_dir), nodes[:split], int(attempt), nodes[split + 1 :])
    problem = sharing.run()
    news = "".join(f"{text}\n" for text in sharing.news)
    sys.stdout.buffer.write(news.encode(sys.stdout.encoding, "backslashreplace"))  # names of files may be any bytes
    print(problem, file=sys.stderr)
    return 1 if problem else 0


class FileSharing:
    """The transfer of node0's files to other nodes.

    Attributes:
        news: which files were sent to which nodes, and which files of these nodes were renamed.
    """

    def __init__(self, run_dir: Path, nodes: Sequence[str], attempt: int, leaving: Sequence[str] = ()) -> None:
        """Prepare a transfer; run() starts it.

        Args:
            run_dir: the run's folder on all nodes; this is node0.
            nodes: the other nodes of the next attempt.
            attempt: the number of the attempt that has ended.
            leaving: nodes of earlier attempts alone, whose files are moved if they respond.
        """
        self.run_dir = run_dir
        self.nodes = nodes
        self.attempt = attempt
        self.leaving = leaving
        self.news: list[str] = []

    def run(self) -> str:
        """Send each node the files that it lacks; return why the files are not the same on all nodes, or ''."""
        try:
            self.share()
        except (OSError, StoreError, ProtocolError, ValueError) as error:
            return f"the files of the run could not be given to the other nodes: {error}"
        return ""

    def share(self) -> None:
        """Compare the nodes, and send files to those that need them.

        Raises:
            StoreError: if a node cannot be reached or cannot write the files, or they are too large.
        """
        token = run_files.token_of(self.run_dir) or "none"
        commands = [RemoteCommand(node, self.run_dir, "list", token) for node in (*self.nodes, *self.leaving)]
        local = run_files.written_files(self.run_dir) if commands else Written()
        failed = [command for command in commands if command.end() != 0]
        raise_failures([command for command in failed if command.node in self.nodes])
        self.news += [f"without the files that only {command.node} has: {command.problem}" for command in failed]
        lists = {
            command.node: values.parse(Written, command.output, f"the list of {command.node}")
            for command in commands
            if command not in failed
        }
        receivers: dict[tuple[str, ...], list[str]] = {}
        for node, remote in lists.items():
            local = self.gather(node, local, remote)
        for node, remote in lists.items():
            if node in self.nodes and not remote.shared and (local, remote.files) != (Written(), {}):
                differing = tuple(path for path, content in local.files.items() if remote.files.get(path) != content)
                receivers.setdefault(differing, []).append(node)
        for paths, nodes in receivers.items():
            self.send(local, paths, nodes)

    def gather(self, node: str, local: Written, remote: Written) -> Written:
        """Take the files that only another node has written, such as its parts of a checkpoint.

        A file that this node has only received loses against what another node has written since.

        Returns:
            What this node has now.
        """
        wrote = remote.files.keys() - (local.files.keys() - {*local.received}) - {*local.deleted, *remote.received}
        wrote = {path for path in wrote if local.files.get(path) != remote.files[path]}
        paths = sorted(path for path in wrote if ".attempt-" not in path and self.can_put(path))
        size = sum(remote.files[path].size for path in paths)
        if remote.shared or not paths:
            return local
        check_size(size, f" of {node}")
        command = RemoteCommand(node, self.run_dir, "send", "-")
        moved = {path: remote.files[path] for path in paths}
        command.write(b"".join(os.fsencode(path) + b"\0" for path in paths))
        with run_files.unpacked(self.run_dir, command.output_blocks(), moved, node) as staging:
            for path in paths:
                target = self.run_dir / files.PROJECT / path
                target.parent.mkdir(parents=True, exist_ok=True)
                (staging / path).replace(target)
        hashes = {path: content.sha256 for path, content in moved.items()}
        run_files.record_received(self.run_dir, run_files.received_hashes(self.run_dir) | hashes)
        self.news.append(f"took {describe(paths)}, {size / 1e6:.1f} MB, from {node} ({LIMIT})")
        return replace(local, files={**local.files, **moved}, received=(*{*local.received, *paths},))

    def can_put(self, path: str) -> bool:
        """Return whether a file of another node can be put here: the path stays inside, and no folder is in its way."""
        copy = self.run_dir / files.PROJECT
        if path.startswith("/") or ".." in path.split("/") or (copy / path).is_dir():
            return False
        parents = [copy / parent for parent in PurePosixPath(path).parents[:-1]]
        return all(not os.path.lexists(parent) or (parent.is_dir() and not parent.is_symlink()) for parent in parents)

    def send(self, local: Written, paths: Sequence[str], nodes: Sequence[str]) -> None:
        """Send the files of these paths to nodes at the same time."""
        size = sum(local.files[path].size for path in paths)
        check_size(size)
        header = values.render(replace(local, archived=tuple(paths))).encode() + b"\n"
        commands = [RemoteCommand(node, self.run_dir, "receive", f"{node}.attempt-{self.attempt}") for node in nodes]
        for command in commands:
            command.write(header)
        with tempfile.TemporaryFile() as names:
            names.write(b"".join(os.fsencode(path) + b"\0" for path in paths))
            names.seek(0)
            for block in receive_files.output(run_files.pack_command(self.run_dir), names):
                for command in commands:
                    command.write(block)
        raise_failures([command for command in commands if command.end() != 0])
        if paths:
            self.news.append(f"gave {describe(paths)}, {size / 1e6:.1f} MB, to {fold(nodes)} ({LIMIT})")
        for command in commands:
            received = values.parse(Received, command.output, f"the response of {command.node}")
            if received.renamed:
                self.news.append(f"{command.node} had written other contents, now in {describe(received.renamed)}")


def check_size(size: int, source: str = "") -> None:
    """Raise StoreError if files are too large."""
    if size > MAX_BYTES:
        hint = "a folder that all nodes share needs no copies"
        raise StoreError(f"{size / 1e9:.1f} GB{source} is too much ({LIMIT}); {hint}")


def describe(paths: Sequence[str]) -> str:
    """Return the number of files, and the names of the first."""
    names = ", ".join([*paths[:MAX_NAMES], *(["..."] if len(paths) > MAX_NAMES else [])])
    return f"{len(paths)} file{'s' * (len(paths) != 1)} ({names})"


class RemoteCommand(receive_files.RemoteProgram):
    """`node.py run-files` on another node.

    Attributes:
        output: what it has printed, after end().
        problem: what it has printed about its failure, with the node's name, after end().
    """

    def __init__(self, node: str, run_dir: Path, action: str, argument: str) -> None:
        super().__init__(reach.remote_command(node, program.command("run-files", action, str(run_dir), argument)))
        self.node = node
        self.output = b""
        self.problem = ""

    def output_blocks(self) -> Iterator[bytes]:
        """Close its standard input, and yield what it prints; raise StoreError if it fails."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.close()
        self.process.stdin = None  # which end() would flush
        start_filter = StartFilter()
        while block := self.process.stdout.read(content_store.CHUNK):
            yield start_filter.output(block)
        raise_failures([self] if self.end() != 0 else [])

    def end(self) -> int:
        """Close its standard input, wait for its end, and return its exit code."""
        self.output, reason = self.finish()
        self.problem = f"{self.node}: {reason or f'exit code {self.process.returncode}'}"
        return self.process.returncode


def raise_failures(commands: Sequence[RemoteCommand]) -> None:
    if commands:
        raise StoreError("; ".join(command.problem for command in commands))
