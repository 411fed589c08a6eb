#!/usr/bin/python
"""Packs a stack of a shared folder into one archive, from which nodes fill folders of their own."""

from __future__ import annotations

import hashlib
import json
import os
import re
import stat
import tarfile
import tempfile
from collections.abc import Iterator
from typing import IO, Any

from ansible.module_utils.basic import AnsibleModule

DOCUMENTATION = r"""
module: orch_archive
short_description: Packs a stack into one archive
description:
  - Writes archives/STACK-HASH.tar, named by the SHA-256 of its content, and archives/STACK.json.
  - Packs again only where names, sizes or times of the stack's files differ.
options:
  root: {description: The shared folder., type: path, required: true}
  stack: {description: A folder below stacks., type: str, required: true}
  kept: {description: How many archives of it stay., type: int, required: true}
author: [orch]
"""
EXAMPLES = r"""
- name: Pack the stack
  orch_archive: {root: /shared/orch, stack: current, kept: 2}
"""
RETURN = r"""
drift: {description: What differed - what, is and should., returned: always, type: list}
"""

CHUNK = 1 << 20


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "root": {"type": "path", "required": True},
            "stack": {"type": "str", "required": True},
            "kept": {"type": "int", "required": True},
        },
        supports_check_mode=True,
    )
    root, stack = module.params["root"], module.params["stack"]
    try:
        drift = compare(root, stack)
        if drift and not module.check_mode:
            pack(root, stack, module.params["kept"])
    except (OSError, tarfile.TarError) as error:
        module.fail_json(msg=f"{root}: {error}")
    module.exit_json(changed=bool(drift), drift=drift)


def compare(root: str, stack: str) -> list[dict[str, str]]:
    """What differs: nothing where the archive is that of the stack as it is."""
    known = recorded(root, stack)
    what = os.path.join("archives", stack + ".tar")
    folder = os.path.join(root, "archives", known.get("file", ""))
    if not known.get("file") or not os.path.isfile(folder):
        return [{"what": what, "is": "missing", "should": "packed"}]
    if known["tree"] != tree_of(os.path.join(root, "stacks", stack)):
        return [{"what": what, "is": "of an earlier stack", "should": "packed"}]
    return []


def recorded(root: str, stack: str) -> dict[str, str]:
    try:
        with open(os.path.join(root, "archives", stack + ".json")) as file:
            found: dict[str, str] = json.load(file)
            return found
    except (OSError, ValueError):
        return {}


def members(folder: str) -> Iterator[str]:
    """Paths of all files and links in it, in order. Compiled files come and go as they are used."""
    for path, folders, names in os.walk(folder):
        folders.sort()
        linked = [name for name in folders if os.path.islink(os.path.join(path, name))]
        for name in sorted(names + linked):
            yield os.path.relpath(os.path.join(path, name), folder)


def tree_of(folder: str) -> str:
    """SHA-256 over names, kinds, sizes and times."""
    total = hashlib.sha256()
    for path in members(folder):
        if not path.endswith(".pyc"):
            there = os.path.join(folder, path)
            found = os.lstat(there)
            link = os.readlink(there) if stat.S_ISLNK(found.st_mode) else ""
            line = [path, found.st_mode, found.st_size, found.st_mtime_ns, link]
            total.update(json.dumps(line).encode("utf-8", "surrogateescape") + b"\n")
    return total.hexdigest()


class Hashed:
    """A file that is hashed as it is written."""

    def __init__(self, file: IO[bytes]) -> None:
        self.file, self.total = file, hashlib.sha256()

    def write(self, data: bytes) -> int:
        self.total.update(data)
        return self.file.write(data)


def pack(root: str, stack: str, kept: int) -> None:
    """Whoever reads meanwhile finds the archive of before, or this one whole."""
    folder, source = os.path.join(root, "archives"), os.path.join(root, "stacks", stack)
    os.makedirs(folder, mode=0o755, exist_ok=True)
    tree = tree_of(source)
    descriptor, part = tempfile.mkstemp(prefix=".", suffix=".part", dir=folder)
    try:
        with os.fdopen(descriptor, "wb") as file:
            hashed = Hashed(file)
            with tarfile.open(fileobj=hashed, mode="w|", bufsize=CHUNK) as archive:  # type: ignore[call-overload]
                for path in members(source):
                    archive.add(os.path.join(source, path), path, recursive=False, filter=nobodys)
            os.fsync(file.fileno())
        name = f"{stack}-{hashed.total.hexdigest()[:16]}.tar"
        os.chmod(part, 0o644)
        os.rename(part, os.path.join(folder, name))
    except BaseException:
        os.unlink(part)
        raise
    note(folder, stack, {"file": name, "sha256": hashed.total.hexdigest(), "tree": tree})
    forget(folder, stack, name, kept)


def nobodys(member: tarfile.TarInfo) -> tarfile.TarInfo:
    """The same for whoever packs; times stay, by which Python knows its compiled files."""
    member.uid = member.gid = 0
    member.uname = member.gname = ""
    return member


def note(folder: str, stack: str, value: dict[str, Any]) -> None:
    path = os.path.join(folder, stack + ".json")
    with open(path + ".part", "w") as file:
        file.write(json.dumps(value) + "\n")
        file.flush()
        os.fsync(file.fileno())
    os.chmod(path + ".part", 0o644)
    os.rename(path + ".part", path)


def forget(folder: str, stack: str, newest: str, kept: int) -> None:
    """Archives but the last ones."""
    name = re.compile(re.escape(stack) + r"-[0-9a-f]{16}\.tar")
    found = [one for one in os.listdir(folder) if name.fullmatch(one)]
    found.sort(key=lambda one: (one == newest, os.path.getmtime(os.path.join(folder, one))))
    for one in found[:-kept]:
        os.unlink(os.path.join(folder, one))


if __name__ == "__main__":
    main()
