#!/usr/bin/python
"""Packing of a stack in a shared folder into one archive, which nodes unpack on their own disks."""

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
short_description: Pack a stack into one archive
description:
  - Writes archives/STACK-HASH.tar, named by the SHA-256 of its content, and archives/STACK.json.
  - Packs again only after names, sizes or times of the stack's files have changed.
options:
  root: {description: The shared folder., type: path, required: true}
  stack: {description: A folder below stacks., type: str, required: true}
  kept: {description: Number of archives of the stack to retain., type: int, required: true}
author: [orch]
"""
EXAMPLES = r"""
- name: Pack the stack
  orch_archive: {root: /shared/orch, stack: current, kept: 2}
"""
RETURN = r"""
drift: {description: The differences - what, is and should., returned: always, type: list}
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
    """Return the difference between the archive and the stack, if there is one."""
    record = read_record(root, stack)
    name = os.path.join("archives", stack + ".tar")
    archive = os.path.join(root, "archives", record.get("file", ""))
    if not record.get("file") or not os.path.isfile(archive):
        return [{"what": name, "is": "missing", "should": "packed"}]
    if record["tree"] != tree_digest(os.path.join(root, "stacks", stack)):
        return [{"what": name, "is": "outdated", "should": "packed"}]
    return []


def read_record(root: str, stack: str) -> dict[str, str]:
    """Return the record of the stack's archive, empty if there is none."""
    try:
        with open(os.path.join(root, "archives", stack + ".json")) as file:
            record: dict[str, str] = json.load(file)
            return record
    except (OSError, ValueError):
        return {}


def members(folder: str) -> Iterator[str]:
    """Yield the paths of all files and links in a folder, in a fixed order."""
    for path, folders, names in os.walk(folder):
        folders.sort()
        linked = [name for name in folders if os.path.islink(os.path.join(path, name))]
        for name in sorted(names + linked):
            yield os.path.relpath(os.path.join(path, name), folder)


def tree_digest(folder: str) -> str:
    """Return a SHA-256 over names, kinds, sizes and times of a folder's files."""
    total = hashlib.sha256()
    for path in members(folder):
        if not path.endswith(".pyc"):  # runs write them
            full = os.path.join(folder, path)
            status = os.lstat(full)
            link = os.readlink(full) if stat.S_ISLNK(status.st_mode) else ""
            line = [path, status.st_mode, status.st_size, status.st_mtime_ns, link]
            total.update(json.dumps(line).encode("utf-8", "surrogateescape") + b"\n")
    return total.hexdigest()


class HashingFile:
    """A file whose content is hashed while it is written."""

    def __init__(self, file: IO[bytes]) -> None:
        self.file, self.total = file, hashlib.sha256()

    def write(self, data: bytes) -> int:
        """Write and hash the data."""
        self.total.update(data)
        return self.file.write(data)


def pack(root: str, stack: str, archive_count: int) -> None:
    """Pack a stack; readers find either the previous archive or the complete new one."""
    folder, source = os.path.join(root, "archives"), os.path.join(root, "stacks", stack)
    os.makedirs(folder, mode=0o755, exist_ok=True)
    tree = tree_digest(source)
    descriptor, part = tempfile.mkstemp(prefix=".", suffix=".part", dir=folder)
    try:
        with os.fdopen(descriptor, "wb") as file:
            hashed = HashingFile(file)
            with tarfile.open(fileobj=hashed, mode="w|", bufsize=CHUNK) as archive:  # type: ignore[call-overload]
                for path in members(source):
                    archive.add(os.path.join(source, path), path, recursive=False, filter=without_owner)
            os.fsync(file.fileno())
        name = f"{stack}-{hashed.total.hexdigest()[:16]}.tar"
        os.chmod(part, 0o644)
        os.rename(part, os.path.join(folder, name))
    except BaseException:
        os.unlink(part)
        raise
    write_record(folder, stack, {"file": name, "sha256": hashed.total.hexdigest(), "tree": tree})
    delete_old(folder, stack, name, archive_count)


def without_owner(member: tarfile.TarInfo) -> tarfile.TarInfo:
    """Return the member without its owner; its time stays, by which Python recognizes compiled files."""
    member.uid = member.gid = 0
    member.uname = member.gname = ""
    return member


def write_record(folder: str, stack: str, value: dict[str, Any]) -> None:
    """Write the record of the stack's archive."""
    path = os.path.join(folder, stack + ".json")
    with open(path + ".part", "w") as file:
        file.write(json.dumps(value) + "\n")
        file.flush()
        os.fsync(file.fileno())
    os.chmod(path + ".part", 0o644)
    os.rename(path + ".part", path)


def delete_old(folder: str, stack: str, newest: str, archive_count: int) -> None:
    """Delete all archives of a stack except the newest ones."""
    pattern = re.compile(re.escape(stack) + r"-[0-9a-f]{16}\.tar")
    archives = [name for name in os.listdir(folder) if pattern.fullmatch(name)]
    archives.sort(key=lambda name: (name == newest, os.path.getmtime(os.path.join(folder, name))))
    for name in archives[:-archive_count]:
        os.unlink(os.path.join(folder, name))


if __name__ == "__main__":
    main()
