"""Mirroring of files of the controller to nodes, like rsync but over any connection, and once for all nodes.

Options of a task besides `root`, all of them optional:
  trees: [{src, dest, mode, public, manifest, hashes, selected}]
                                  folders of the controller to mirror, with deletion; `mode` of all files, by default
                                  0700 for executable files and 0600 for others, or with `public` 0755 and 0644;
                                  `hashes`, or in a JSON file `manifest`, the SHA-256 of each file by its path, selects
                                  the files, and `selected` those of them that this node needs
  files: [{dest, content, mode}]  single files; a content that is not text is written as JSON
  folders: {path: mode}           folders to create
  absent: [path]                  files to delete
  ignored: [pattern]              names that are neither copied nor deleted
  state:                          `present` (the default): make the files equal.
                                  `compared`: the same if little is missing, otherwise only report what is missing.
                                  `passed`: send what nodes miss to the first of them, which passes it on to the others
  compared, passed                the registered variables of the tasks before with these states
  group                           only nodes of one group get files through each other; they have the same sources
"""

from __future__ import annotations

import fnmatch
import hashlib
import io
import json
import os
import shlex
import stat
import sys
import zlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Any

from ansible.errors import AnsibleActionFail
from ansible.plugins.action import ActionBase

sys.path.append(str(Path(__file__).resolve().parents[2] / "train/lib"))

from orch_node.reach import shell_command
from orch_node.standalone import receive_files

SMALL_BYTES = 1 << 20  # that each node gets directly, which takes less time than through other nodes
# Memory of the controller for one sender, and for each if several nodes get files directly. Each pack costs the
# connections once more.
ONLY_BYTES, EACH_BYTES = 256 << 20, 32 << 20
SAMPLE_BYTES = 1 << 16
WORTHWHILE = 0.7  # of the size: compression is slower than most networks

Piece = dict[str, Any]  # what receive_files.py reads, and `file`, the source


class ActionModule(ActionBase):  # type: ignore[misc]
    """The controller's part of orch_tree."""

    TRANSFERS_FILES = False  # no file is transferred, and no remote temporary folder needed
    _requires_connection = True

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        """Compare the files, then send those that differ."""
        super().run(tmp, task_vars)
        options, variables = self._task.args, task_vars or {}
        sources = read_sources(options, list(options.get("ignored", ())))
        if options.get("state") == "passed":
            return self._pass_on(sources, variables)
        arguments = {
            "root": options["root"],
            "manifest": {path: source.entry for path, source in sources.items() if source.selected},
            "mirrored": [tree["dest"] for tree in options.get("trees", ())],
            "absent": list(options.get("absent", ())),
            "ignored": list(options.get("ignored", ())),
            "folders": dict(options.get("folders", {})),
        }
        result = self._execute(arguments, variables)
        if not result.get("failed") and not result.get("complete") and not self._task.check_mode:
            result = self._complete(result, sources, arguments, variables)
        earlier = registered(variables, variables["inventory_hostname"], options.get("compared"))
        if earlier.get("drift") and not result.get("failed"):
            return {**result, "changed": True, "drift": earlier["drift"]}
        return result

    def _complete(
        self, result: dict[str, Any], sources: dict[str, Source], arguments: dict[str, Any], variables: dict[str, Any]
    ) -> dict[str, Any]:
        """Send what the node misses, unless another node may pass it on."""
        # The node names the files that it lacks; it must not get other files of the controller.
        offsets = checked_offsets(result["missing"], sources)
        drift = result["drift"]
        is_small = sum(sources[path].size for path in offsets) <= SMALL_BYTES
        if self._task.args.get("state") == "compared" and not is_small:
            return {**result, "changed": False, "group": self._task.args.get("group", "")}
        most_bytes = ONLY_BYTES if len(variables["ansible_play_hosts"]) == 1 else EACH_BYTES
        for pieces in packs(offsets, sources, most_bytes):
            problem = self._send(pieces, result["python"]).get("")
            if problem:
                return {"failed": True, "msg": problem}
        return {**self._execute(arguments, variables), "changed": True, "drift": drift}

    def _pass_on(self, sources: dict[str, Source], variables: dict[str, Any]) -> dict[str, Any]:
        """Send what several nodes miss to this one if it is the first of them; it passes everything on."""
        options, name = self._task.args, variables["inventory_hostname"]
        waiting = nodes_that_miss_files(variables, options["compared"], options.get("group", ""))
        is_done = any(registered(variables, node, options.get("passed")).get("nodes") for node in waiting)
        if is_done or len(waiting) < 2 or name != next(iter(waiting)):
            return {"changed": False}
        offsets = common_offsets([checked_offsets(result["missing"], sources) for result in waiting.values()])
        receivers = [
            (node, shell_command(receive_files.command(result["python"])))
            for node, result in waiting.items()
            if node != name
        ]
        problems: dict[str, str] = {}
        for pieces in packs(offsets, sources, ONLY_BYTES):
            problems.update(self._send_to_all(pieces, waiting[name]["python"], receivers))
            receivers = [node for node in receivers if node[0] not in problems]
            if not receivers:
                break
        return {"changed": False, "nodes": list(waiting), "problems": problems}

    def _send_to_all(self, pieces: list[Piece], python: str, nodes: Sequence[tuple[str, str]]) -> dict[str, str]:
        """Send pieces to this node and through it to others; return why some of them do not get them.

        Nodes to which a failing node would have passed them on get them again from this node.
        """
        problems: dict[str, str] = {}
        has_written = False
        while True:
            reasons = self._send(pieces, python, nodes, is_stored=has_written)
            has_written = has_written or "" not in reasons
            problems.update({name: reason for name, reason in reasons.items() if name and reason})
            nodes = [node for node in nodes if node[0] in reasons and node[0] not in problems]
            if not nodes:
                return problems

    def _send(
        self, pieces: list[Piece], python: str, nodes: Sequence[tuple[str, str]] = (), *, is_stored: bool = False
    ) -> dict[str, str | None]:
        """Send pieces, or let the node send those that it has stored; return the output of receive_files.py."""
        argv = (shlex.quote(word) for word in receive_files.command(python))
        data = message(self._task.args["root"], pieces, nodes, is_stored=is_stored)
        done = self._low_level_execute_command(" ".join(argv), sudoable=False, in_data=data)
        try:
            problems = dict(json.loads(done["stdout"].strip().splitlines()[-1]))
        except (IndexError, TypeError, ValueError):
            reason = (done["stderr"] or done["stdout"]).strip()[-500:] or "the transfer was interrupted"
            return {"": reason, **{name: reason for name, _ in nodes}}
        return {str(name): None if reason is None else str(reason) for name, reason in problems.items()}

    def _execute(self, arguments: dict[str, Any], task_vars: dict[str, Any]) -> dict[str, Any]:
        result: dict[str, Any] = self._execute_module("orch_tree", module_args=arguments, task_vars=task_vars)
        return result


def registered(variables: Mapping[str, Any], node: str, name: str | None) -> dict[str, Any]:
    """Return what an earlier task has registered for a node, or nothing."""
    result = variables["hostvars"][node].get(name) if name else None
    return result if isinstance(result, dict) else {}


def nodes_that_miss_files(variables: Mapping[str, Any], name: str, group: str) -> dict[str, dict[str, Any]]:
    """Return what the nodes of a group that can be reached have reported in the comparison, by their names."""
    results = {node: registered(variables, node, name) for node in variables["ansible_play_hosts"]}
    return {
        node: result
        for node, result in results.items()
        if result.get("missing") and not result.get("complete") and result.get("group") == group
    }


def checked_offsets(missing: Any, sources: Mapping[str, Source]) -> dict[str, int]:
    """Return how much of each file has arrived; only of sources, because a node must not name other files."""
    return {
        path: offset if isinstance(offset, int) and 0 <= offset < sources[path].size else 0
        for path, offset in dict(missing).items()
        if path in sources
    }


def common_offsets(offsets_of_nodes: Sequence[Mapping[str, int]]) -> dict[str, int]:
    """Return how much of each file that a node misses has arrived on all nodes that miss it."""
    common: dict[str, int] = {}
    for offsets in offsets_of_nodes:
        for path, offset in offsets.items():
            common[path] = min(offset, common.get(path, offset))
    return common


def packs(offsets: Mapping[str, int], sources: Mapping[str, Source], most_bytes: int) -> Iterator[list[Piece]]:
    """Yield lists of pieces of at most so many bytes together, without what has arrived."""
    pack: list[Piece] = []
    capacity = most_bytes
    for path, offset in sorted(offsets.items()):
        source = sources[path]
        entry = {"path": path, **source.entry, "size": source.size}
        while True:
            length = min(capacity, source.size - offset)
            pack.append({**entry, "offset": offset, "length": length, "file": source})
            offset, capacity = offset + length, capacity - length
            if capacity == 0:
                yield pack
                pack, capacity = [], most_bytes
            if offset == source.size:
                break
    if pack:
        yield pack


def message(root: str, pieces: Sequence[Piece], nodes: Sequence[tuple[str, str]], *, is_stored: bool = False) -> bytes:
    """Return the input of receive_files.py, compressed unless the largest file hardly shrinks, as weights do."""
    is_compressed = shrinks(max(pieces, key=lambda piece: int(piece["length"]))["file"])
    described = [{key: value for key, value in piece.items() if key != "file"} for piece in pieces]
    head = {"root": root, "pieces": described, "nodes": nodes, "compressed": is_compressed, "stored": is_stored}
    start = receive_files.beginning(head)
    if is_stored:
        return start
    if is_compressed:
        compressor = zlib.compressobj(1)
        return b"".join([start, *map(compressor.compress, map(read_piece, pieces)), compressor.flush()])
    # Filled in place, because each copy of a pack takes as long as its encryption.
    data = io.BytesIO(bytes(len(start) + sum(piece["length"] for piece in pieces)))
    data.write(start)
    for piece in pieces:
        data.write(read_piece(piece))
    return data.getvalue()


def read_piece(piece: Piece) -> bytes:
    """Return the bytes of a piece.

    Raises:
        AnsibleActionFail: if the file has become shorter.
    """
    with piece["file"].open() as file:
        file.seek(piece["offset"])
        content: bytes = file.read(piece["length"])
    if len(content) != piece["length"]:
        raise AnsibleActionFail(f"{piece['file'].path} was truncated during the transfer")
    return content


class Source:
    """A file to write: a file of the controller, or a content of the task."""

    def __init__(
        self, *, path: str = "", content: bytes = b"", mode: str, sha256: str = "", selected: bool = True
    ) -> None:
        self.path, self.content, self.mode, self.sha256, self.selected = path, content, mode, sha256, selected

    @property
    def entry(self) -> dict[str, str]:
        """Return the entry of the file in the manifest."""
        self.sha256 = self.sha256 or self.digest()
        return {"sha256": self.sha256, "mode": self.mode}

    def digest(self) -> str:
        """Return the SHA-256 of the content."""
        total = hashlib.sha256()
        with self.open() as file:
            for block in iter(lambda: file.read(1 << 20), b""):
                total.update(block)
        return total.hexdigest()

    def open(self) -> IO[bytes]:
        """Return the content as an open file."""
        return open(self.path, "rb") if self.path else io.BytesIO(self.content)

    @property
    def size(self) -> int:
        """Return the size in bytes."""
        return os.path.getsize(self.path) if self.path else len(self.content)


def read_sources(options: dict[str, Any], ignored: list[str]) -> dict[str, Source]:
    """Return the files of a task by their paths on the node."""
    sources: dict[str, Source] = {}
    for tree in options.get("trees", ()):
        sources.update(tree_sources(tree, ignored))
    for file in options.get("files", ()):
        content = file["content"]
        text = content if isinstance(content, str) else json.dumps(content, indent=1) + "\n"
        sources[file["dest"]] = Source(content=text.encode(), mode=file["mode"])
    return sources


def tree_sources(tree: dict[str, Any], ignored: list[str]) -> dict[str, Source]:
    """Return the files of one tree by their paths on the node.

    Raises:
        AnsibleActionFail: if the tree does not exist.
    """
    src, dest = os.path.expanduser(tree["src"]), tree["dest"]

    def mode_of(path: str) -> str:
        return str(tree.get("mode") or default_mode(path, public=tree.get("public", False)))

    if os.path.isfile(src):
        return {dest: Source(path=src, mode=mode_of(src))}
    if not os.path.isdir(src):
        raise AnsibleActionFail(f"{src} does not exist")
    sources = {}
    hashes = read_hashes(tree)
    if hashes:
        selected = set(tree.get("selected", hashes))
        for name, digest in hashes.items():
            path = os.path.join(src, name)
            source = Source(path=path, mode=mode_of(path), sha256=digest, selected=name in selected)
            sources[os.path.join(dest, name)] = source
        return sources
    for base, folders, files in os.walk(src, followlinks=True):
        folders[:] = [name for name in sorted(folders) if not matches(name, ignored)]
        for name in files:
            path = os.path.join(base, name)
            if not matches(name, ignored) and os.path.isfile(path):
                sources[os.path.join(dest, os.path.relpath(path, src))] = Source(path=path, mode=mode_of(path))
    return sources


def read_hashes(tree: Mapping[str, Any]) -> dict[str, str]:
    """Return the SHA-256 of each file by its path; nothing if the tree has none."""
    if "manifest" not in tree:
        return dict(tree.get("hashes", {}))
    with open(tree["manifest"]) as manifest:
        hashes: dict[str, str] = json.load(manifest)
    return hashes


def default_mode(path: str, *, public: bool) -> str:
    """Return the mode on the node, where only the user who trains reads a file that is not public."""
    executable = bool(os.stat(path).st_mode & stat.S_IXUSR)
    if public:
        return "0755" if executable else "0644"
    return "0700" if executable else "0600"


def matches(name: str, patterns: list[str]) -> bool:
    """Return whether a name matches one of the patterns."""
    return any(fnmatch.fnmatch(name, pattern) for pattern in patterns)


def shrinks(source: Source) -> bool:
    """Return whether the middle of a file is much smaller if it is compressed."""
    with source.open() as file:
        file.seek(max(0, source.size // 2 - SAMPLE_BYTES))
        sample = file.read(SAMPLE_BYTES)
    return len(zlib.compress(sample, 1)) < WORTHWHILE * len(sample) + 64
