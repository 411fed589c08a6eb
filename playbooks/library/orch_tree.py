#!/usr/bin/python
"""The node's half of orch_tree: tells how files differ from a manifest, and puts them right."""

from __future__ import annotations

import base64
import fnmatch
import hashlib
import io
import os
import shutil
import stat
import tarfile
import tempfile
from typing import IO, Any

from ansible.module_utils.basic import AnsibleModule

DOCUMENTATION = r"""
module: orch_tree
short_description: Makes files of a node equal to files of the controller
description:
  - Compares by SHA-256 and mode. Only what differs travels, in one archive.
  - Files of a mirrored folder that the controller does not have are deleted, none outside it.
  - The action plugin of the same name reads the sources; it documents what a task can say.
options:
  root: {description: The folder that all paths are relative to., type: path, required: true}
  manifest: {description: Path to sha256 and mode of each file., type: dict, default: {}}
  mirrored:
    description: Folders whose other files are deleted.
    type: list
    elements: str
    default: []
  absent: {description: Files that must not be there., type: list, elements: str, default: []}
  ignored: {description: Names that are left alone., type: list, elements: str, default: []}
  folders: {description: Folder to mode., type: dict, default: {}}
  archive: {description: A tar file with what differs., type: path}
  content: {description: Or such a file's content in base64., type: str}
author: [orch]
"""
EXAMPLES = r"""
- name: Mirror the scripts
  orch_tree:
    root: /opt/orch
    trees: [{src: train, dest: train}]
    files: [{dest: env.json, content: "{}", mode: "0600"}]
"""
RETURN = r"""
drift: {description: What differed or differs - what, is and should., returned: always, type: list}
missing: {description: Files whose content the node needs., returned: always, type: list}
"""

CHUNK = 1 << 20


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "root": {"type": "path", "required": True},
            "manifest": {"type": "dict", "default": {}},
            "mirrored": {"type": "list", "elements": "str", "default": []},
            "absent": {"type": "list", "elements": "str", "default": []},
            "ignored": {"type": "list", "elements": "str", "default": []},
            "folders": {"type": "dict", "default": {}},
            "archive": {"type": "path"},
            "content": {"type": "str", "no_log": True},
        },
        supports_check_mode=True,
    )
    os.umask(0o077)  # folders that a file needs on its way belong to this user alone
    given = module.params
    found = compare(given)
    work = found["missing"] or found["extra"] or found["modes"] or found["folders"]
    complete = given["archive"] or given["content"] or not found["missing"]
    if work and complete and not module.check_mode:
        try:
            apply(given, found)
        except (OSError, tarfile.TarError, ValueError) as error:
            module.fail_json(msg="{}: {}".format(given["root"], error), drift=found["drift"])
    module.exit_json(changed=bool(work), drift=found["drift"], missing=found["missing"], complete=bool(complete))


def compare(given: dict[str, Any]) -> dict[str, list[Any]]:
    root, manifest = given["root"], given["manifest"]
    missing: list[str] = []
    modes: list[str] = []
    drift: list[dict[str, str]] = []
    for path, wanted in sorted(manifest.items()):
        state, is_, should = compare_file(os.path.join(root, path), wanted)
        if state:
            (missing if state == "content" else modes).append(path)
            drift.append({"what": path, "is": is_, "should": should})
    extra = [path for folder in given["mirrored"] for path in strangers(root, folder, given)]
    extra += [path for path in given["absent"] if os.path.lexists(os.path.join(root, path))]
    drift += [{"what": path, "is": "present", "should": "absent"} for path in extra]
    folders = [path for path, mode in sorted(given["folders"].items()) if mode_of(os.path.join(root, path)) != mode]
    drift += [
        {
            "what": (path or root) + "/",
            "is": mode_of(os.path.join(root, path)) or "missing",
            "should": given["folders"][path],
        }
        for path in folders
    ]
    return {"missing": missing, "modes": modes, "extra": extra, "folders": folders, "drift": drift}


def compare_file(path: str, wanted: dict[str, str]) -> tuple[str, str, str]:
    """-> (what kind of difference, what is, what should be); the kind is empty for none."""
    if not os.path.isfile(path) or os.path.islink(path):
        return "content", "missing" if not os.path.lexists(path) else "not a file", "present"
    if digest(path) != wanted["sha256"]:
        return "content", "other content", "sha256 " + wanted["sha256"][:12]
    if mode_of(path) != wanted["mode"]:
        return "mode", "mode " + mode_of(path), "mode " + wanted["mode"]
    return "", "", ""


def mode_of(path: str) -> str:
    try:
        return f"{stat.S_IMODE(os.lstat(path).st_mode):04o}"
    except OSError:
        return ""


def digest(path: str) -> str:
    total = hashlib.sha256()
    with open(path, "rb") as file:
        for block in iter(lambda: file.read(CHUNK), b""):
            total.update(block)
    return total.hexdigest()


def strangers(root: str, folder: str, given: dict[str, Any]) -> list[str]:
    """Files below a mirrored folder that are neither in the manifest nor ignored."""
    found = []
    for base, folders, files in os.walk(os.path.join(root, folder)):
        links = [name for name in folders if os.path.islink(os.path.join(base, name))]
        folders[:] = [n for n in folders if n not in links and not ignored(n, given)]
        for name in sorted(files + links):
            path = os.path.relpath(os.path.join(base, name), root)
            if path not in given["manifest"] and not ignored(name, given):
                found.append(path)
    return found


def ignored(name: str, given: dict[str, Any]) -> bool:
    return any(fnmatch.fnmatch(name, pattern) for pattern in given["ignored"])


def apply(given: dict[str, Any], found: dict[str, list[Any]]) -> None:
    root = given["root"]
    os.makedirs(root, exist_ok=True)
    for path in sorted(given["folders"]):
        os.makedirs(os.path.join(root, path), exist_ok=True)
        os.chmod(os.path.join(root, path), int(given["folders"][path], 8))
    if given["archive"] or given["content"]:
        unpack(given, set(found["missing"]))
    for path in found["modes"]:
        os.chmod(os.path.join(root, path), int(given["manifest"][path]["mode"], 8))
    for path in found["extra"]:
        delete(root, path, given["mirrored"])
    left = compare(given)
    if left["drift"]:
        raise ValueError("still differs after the transfer: {}".format(left["drift"][:3]))


def unpack(given: dict[str, Any], wanted: set[str]) -> None:
    """Each file is complete and checked before it takes its name."""
    root = given["root"]
    staging = tempfile.mkdtemp(prefix=".incoming-", dir=root)
    try:
        with opened(given) as archive:
            for member in archive:
                content = archive.extractfile(member) if member.name in wanted else None
                if content is not None:
                    place(content, member.name, given, staging)
    finally:
        shutil.rmtree(staging, ignore_errors=True)


def opened(given: dict[str, Any]) -> tarfile.TarFile:
    if given["archive"]:
        return tarfile.open(given["archive"])
    return tarfile.open(fileobj=io.BytesIO(base64.b64decode(given["content"])))


def place(source: IO[bytes], path: str, given: dict[str, Any], staging: str) -> None:
    expected = given["manifest"][path]
    temporary, target = os.path.join(staging, "file"), os.path.join(given["root"], path)
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        shutil.copyfileobj(source, file, CHUNK)
    if digest(temporary) != expected["sha256"]:
        raise ValueError(path + " arrived damaged")
    os.chmod(temporary, int(expected["mode"], 8))
    os.makedirs(os.path.dirname(target), exist_ok=True)
    if os.path.isdir(target) and not os.path.islink(target):
        shutil.rmtree(target)
    os.replace(temporary, target)


def delete(root: str, path: str, mirrored: list[str]) -> None:
    """A file, and the folders that it leaves empty, up to the mirrored one."""
    os.unlink(os.path.join(root, path))
    folder = os.path.dirname(path)
    while folder and folder not in mirrored:
        try:
            os.rmdir(os.path.join(root, folder))
        except OSError:
            return
        folder = os.path.dirname(folder)


if __name__ == "__main__":
    main()
