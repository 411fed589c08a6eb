"""Makes files of a node equal to files of the controller: rsync's semantics over any connection.

A task says `root`, and of these what it needs:
  trees: [{src, dest, mode}]      folders of the controller, mirrored with deletion; `mode` of all
                                  files, or else 0700 and 0600 as they are executable or not: never
                                  wider than they are here
  files: [{dest, content, mode}]  single files; a content that is not text is written as JSON
  folders: {path: mode}
  absent: [path]                  files that must not be there
  ignored: [pattern]              names that neither travel nor are deleted
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
from typing import IO, Any

from ansible.errors import AnsibleActionFail
from ansible.plugins.action import ActionBase

SMALL = 1 << 20  # bytes of an archive


class ActionModule(ActionBase):  # type: ignore[misc]
    TRANSFERS_FILES = False  # most runs need no file there, and so no folder for it
    _requires_connection = True

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        super().run(tmp, task_vars)
        given = self._task.args
        ignored = list(given.get("ignored", ()))
        sources = read_sources(given, ignored)
        arguments = {
            "root": given["root"],
            "manifest": {path: source.entry for path, source in sources.items()},
            "mirrored": [tree["dest"] for tree in given.get("trees", ())],
            "absent": list(given.get("absent", ())),
            "ignored": ignored,
            "folders": dict(given.get("folders", {})),
        }
        result = self._execute("orch_tree", arguments, task_vars)
        if result.get("failed") or result.get("complete") or self._task.check_mode:
            return result
        drift = result["drift"]
        with tempfile.NamedTemporaryFile(suffix=".tar.gz") as archive:
            # The node names what it needs: it gets that of what was offered, and nothing else.
            pack(archive, [path for path in result["missing"] if path in sources], sources)
            result = self._bring(archive.name, arguments, task_vars)
        return {**result, "drift": drift}

    def _bring(self, archive: str, arguments: dict[str, Any], task_vars: dict[str, Any] | None) -> dict[str, Any]:
        """With the module's arguments if it is small: a file takes four more commands there."""
        if os.path.getsize(archive) <= SMALL:
            with open(archive, "rb") as file:
                content = base64.b64encode(file.read()).decode()
            return self._execute("orch_tree", {**arguments, "content": content}, task_vars)
        try:
            remote = self._send(archive)
            return self._execute("orch_tree", {**arguments, "archive": remote}, task_vars)
        finally:
            self._remove_tmp_path(self._connection._shell.tmpdir)

    def _execute(self, module: str, arguments: dict[str, Any], task_vars: dict[str, Any] | None) -> dict[str, Any]:
        done: dict[str, Any] = self._execute_module(module, module_args=arguments, task_vars=task_vars)
        return done

    def _send(self, local: str) -> str:
        if not self._connection._shell.tmpdir:
            self._make_tmp_path()
        shell = self._connection._shell
        remote: str = shell.join_path(shell.tmpdir, "archive.tar.gz")
        self._transfer_file(local, remote)
        self._fixup_perms2((self._connection._shell.tmpdir, remote))
        return remote


class Source:
    """A file to be: from the controller's disk, or a content given in the task."""

    def __init__(self, *, path: str = "", content: bytes = b"", mode: str) -> None:
        self.path, self.content, self.mode = path, content, mode

    @property
    def entry(self) -> dict[str, str]:
        with self.open() as file:
            return {"sha256": digest(file), "mode": self.mode}

    def open(self) -> IO[bytes]:
        return open(self.path, "rb") if self.path else io.BytesIO(self.content)

    @property
    def size(self) -> int:
        return os.path.getsize(self.path) if self.path else len(self.content)


def digest(file: IO[bytes]) -> str:
    total = hashlib.sha256()
    for block in iter(lambda: file.read(1 << 20), b""):
        total.update(block)
    return total.hexdigest()


def read_sources(given: dict[str, Any], ignored: list[str]) -> dict[str, Source]:
    sources: dict[str, Source] = {}
    for tree in given.get("trees", ()):
        sources.update(walk(tree, ignored))
    for file in given.get("files", ()):
        content = file["content"]
        text = content if isinstance(content, str) else json.dumps(content, indent=1) + "\n"
        sources[file["dest"]] = Source(content=text.encode(), mode=file["mode"])
    return sources


def walk(tree: dict[str, Any], ignored: list[str]) -> dict[str, Source]:
    src, dest, mode = os.path.expanduser(tree["src"]), tree["dest"], tree.get("mode")
    if os.path.isfile(src):
        return {dest: Source(path=src, mode=mode or mode_of(src))}
    if not os.path.isdir(src):
        raise AnsibleActionFail(f"{src} is not there")
    found = {}
    for base, folders, files in os.walk(src, followlinks=True):
        folders[:] = [name for name in sorted(folders) if not matches(name, ignored)]
        for name in files:
            path = os.path.join(base, name)
            if not matches(name, ignored) and os.path.isfile(path):
                inside = os.path.join(dest, os.path.relpath(path, src))
                found[inside] = Source(path=path, mode=mode or mode_of(path))
    return found


def mode_of(path: str) -> str:
    """Like git: executable or not. What its group and others may do here is of no matter there:
    whoever trains is the one user who reads it."""
    return "0700" if os.stat(path).st_mode & stat.S_IXUSR else "0600"


def matches(name: str, patterns: list[str]) -> bool:
    return any(fnmatch.fnmatch(name, pattern) for pattern in patterns)


def pack(target: IO[bytes], paths: list[str], sources: dict[str, Source]) -> None:
    with tarfile.open(fileobj=target, mode="w:gz", compresslevel=1) as archive:
        for path in paths:
            member = tarfile.TarInfo(path)
            member.size = sources[path].size
            with sources[path].open() as file:
                archive.addfile(member, file)
    target.flush()
