"""Mirroring of files of the controller to a node, like rsync but over any connection.

Options of a task besides `root`, all of them optional:
  trees: [{src, dest, mode, public, manifest}]
                                  folders of the controller to mirror, with deletion; `mode` of all files, by default
                                  0700 for executable files and 0600 for others, or with `public` 0755 and 0644;
                                  `manifest`, a JSON file with the SHA-256 of each file by its path, selects the files
  files: [{dest, content, mode}]  single files; a content that is not text is written as JSON
  folders: {path: mode}           folders to create
  absent: [path]                  files to delete
  ignored: [pattern]              names that are neither copied nor deleted
  archive_bytes: number           most bytes of the files in an archive; a larger file is sent alone
"""

from __future__ import annotations

import base64
import fnmatch
import hashlib
import io
import json
import os
import stat
import tarfile
import tempfile
import zlib
from typing import IO, Any

from ansible.errors import AnsibleActionFail
from ansible.plugins.action import ActionBase

SMALL_BYTES = 1 << 20  # of an archive
# Of the files in an archive, which needs as much space in the temporary folders of both machines. After an
# interruption, only archives that are not unpacked yet are sent again.
ARCHIVE_BYTES = 1 << 30
SAMPLE_BYTES = 1 << 16
WORTHWHILE = 0.7  # of the size: compression is slower than most networks


class ActionModule(ActionBase):  # type: ignore[misc]
    """The controller's part of orch_tree."""

    TRANSFERS_FILES = False  # usually no file is transferred, and no remote temporary folder needed
    _requires_connection = True

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        """Compare the files, then send an archive of those that differ."""
        super().run(tmp, task_vars)
        options = self._task.args
        ignored = list(options.get("ignored", ()))
        sources = read_sources(options, ignored)
        arguments = {
            "root": options["root"],
            "manifest": {path: source.entry for path, source in sources.items()},
            "mirrored": [tree["dest"] for tree in options.get("trees", ())],
            "absent": list(options.get("absent", ())),
            "ignored": ignored,
            "folders": dict(options.get("folders", {})),
        }
        result = self._execute(arguments, task_vars)
        if result.get("failed") or result.get("complete") or self._task.check_mode:
            return result
        drift = result["drift"]
        # The node names the files that it lacks; it must not get other files of the controller.
        *first, last = divided(
            [path for path in result["missing"] if path in sources],
            sources,
            int(options.get("archive_bytes", ARCHIVE_BYTES)),
        )
        for paths in first:
            entries = {path: arguments["manifest"][path] for path in paths}
            result = self._send_files(paths, sources, {"root": arguments["root"], "manifest": entries}, task_vars)
            if result.get("failed"):
                return result
        result = self._send_files(last, sources, arguments, task_vars)
        return {**result, "drift": drift}

    def _send_files(
        self, paths: list[str], sources: dict[str, Source], arguments: dict[str, Any], task_vars: dict[str, Any] | None
    ) -> dict[str, Any]:
        with tempfile.NamedTemporaryFile(suffix=".tar.gz") as archive:
            pack(archive, paths, sources)
            return self._deliver(archive.name, arguments, task_vars)

    def _deliver(self, archive: str, arguments: dict[str, Any], task_vars: dict[str, Any] | None) -> dict[str, Any]:
        """Send the archive: a small one in the module's arguments, because a file takes four more commands."""
        if os.path.getsize(archive) <= SMALL_BYTES:
            with open(archive, "rb") as file:
                content = base64.b64encode(file.read()).decode()
            return self._execute({**arguments, "content": content}, task_vars)
        try:
            remote = self._send(archive)
            return self._execute({**arguments, "archive": remote}, task_vars)
        finally:
            self._remove_tmp_path(self._connection._shell.tmpdir)

    def _execute(self, arguments: dict[str, Any], task_vars: dict[str, Any] | None) -> dict[str, Any]:
        result: dict[str, Any] = self._execute_module("orch_tree", module_args=arguments, task_vars=task_vars)
        return result

    def _send(self, local: str) -> str:
        if not self._connection._shell.tmpdir:
            self._make_tmp_path()
        shell = self._connection._shell
        remote: str = shell.join_path(shell.tmpdir, "archive.tar.gz")
        self._transfer_file(local, remote)
        self._fixup_perms2((self._connection._shell.tmpdir, remote))
        return remote


class Source:
    """A file to write: a file of the controller, or a content of the task."""

    def __init__(self, *, path: str = "", content: bytes = b"", mode: str, sha256: str = "") -> None:
        self.path, self.content, self.mode, self.sha256 = path, content, mode, sha256

    @property
    def entry(self) -> dict[str, str]:
        """Return the entry of the file in the manifest."""
        return {"sha256": self.sha256 or self.digest(), "mode": self.mode}

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
    if "manifest" in tree:
        with open(tree["manifest"]) as manifest:
            hashes = json.load(manifest)
        for name, digest in hashes.items():
            path = os.path.join(src, name)
            sources[os.path.join(dest, name)] = Source(path=path, mode=mode_of(path), sha256=digest)
        return sources
    for base, folders, files in os.walk(src, followlinks=True):
        folders[:] = [name for name in sorted(folders) if not matches(name, ignored)]
        for name in files:
            path = os.path.join(base, name)
            if not matches(name, ignored) and os.path.isfile(path):
                sources[os.path.join(dest, os.path.relpath(path, src))] = Source(path=path, mode=mode_of(path))
    return sources


def default_mode(path: str, *, public: bool) -> str:
    """Return the mode on the node, where only the user who trains reads a file that is not public."""
    executable = bool(os.stat(path).st_mode & stat.S_IXUSR)
    if public:
        return "0755" if executable else "0644"
    return "0700" if executable else "0600"


def matches(name: str, patterns: list[str]) -> bool:
    """Return whether a name matches one of the patterns."""
    return any(fnmatch.fnmatch(name, pattern) for pattern in patterns)


def divided(paths: list[str], sources: dict[str, Source], most_bytes: int) -> list[list[str]]:
    """Return the files in groups of at most so many bytes, or of one file; at least one group."""
    groups: list[list[str]] = [[]]
    size = 0
    for path in paths:
        size += sources[path].size
        if groups[-1] and size > most_bytes:
            groups.append([])
            size = sources[path].size
        groups[-1].append(path)
    return groups


def pack(target: IO[bytes], paths: list[str], sources: dict[str, Source]) -> None:
    """Write an archive of these files, compressed unless the largest one hardly shrinks, as weights of models do."""
    largest = max(paths, key=lambda path: sources[path].size, default=None)
    compression: dict[str, Any] = {"mode": "w"}
    if largest is None or shrinks(sources[largest]):
        compression = {"mode": "w:gz", "compresslevel": 1}
    with tarfile.open(fileobj=target, **compression) as archive:
        for path in paths:
            member = tarfile.TarInfo(path)
            member.size = sources[path].size
            with sources[path].open() as file:
                archive.addfile(member, file)
    target.flush()


def shrinks(source: Source) -> bool:
    """Return whether the middle of a file is much smaller if it is compressed."""
    with source.open() as file:
        file.seek(max(0, source.size // 2 - SAMPLE_BYTES))
        sample = file.read(SAMPLE_BYTES)
    return len(zlib.compress(sample, 1)) < WORTHWHILE * len(sample) + 64
