#!/usr/bin/python
"""Comparison of a node's files with a manifest, and their repair: the node's part of orch_tree."""

from __future__ import annotations

import fnmatch
import hashlib
import os
import stat
import sys
from typing import Any

from ansible.module_utils.basic import AnsibleModule

DOCUMENTATION = r"""
module: orch_tree
short_description: Mirror files of the controller to a node
description:
  - Compares files by SHA-256 and mode. Only files that differ are transferred.
  - Files that the controller does not have are deleted in mirrored folders only.
  - The action plugin of the same name reads the sources and documents the options of a task.
options:
  root: {description: The folder that all paths are relative to., type: path, required: true}
  manifest: {description: Path to sha256 and mode of each file., type: dict, default: {}}
  mirrored:
    description: Folders in which files are deleted that are not in the manifest.
    type: list
    elements: str
    default: []
  absent: {description: Files to delete., type: list, elements: str, default: []}
  ignored: {description: Patterns of names that are ignored., type: list, elements: str, default: []}
  folders: {description: Folder to mode., type: dict, default: {}}
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
drift: {description: The differences - what, is and should., returned: always, type: list}
missing: {description: Bytes that have arrived of each file whose content the node needs., returned: always, type: dict}
python: {description: The Python that runs the module., returned: always, type: str}
"""

CHUNK = 1 << 20
INCOMING = ".incoming-"  # begins the names of incomplete files


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "root": {"type": "path", "required": True},
            "manifest": {"type": "dict", "default": {}},
            "mirrored": {"type": "list", "elements": "str", "default": []},
            "absent": {"type": "list", "elements": "str", "default": []},
            "ignored": {"type": "list", "elements": "str", "default": []},
            "folders": {"type": "dict", "default": {}},
        },
        supports_check_mode=True,
    )
    os.umask(0o077)  # of the root and of folders above it
    params = module.params
    differences = compare(params)
    different = bool(differences["drift"])
    complete = not differences["missing"]
    if different and complete and not module.check_mode:
        try:
            repair(params, differences)
        except (OSError, ValueError) as error:
            module.fail_json(msg="{}: {}".format(params["root"], error), drift=differences["drift"])
    module.exit_json(
        changed=different,
        drift=differences["drift"],
        missing={path: arrived_bytes(params, path) for path in differences["missing"]},
        complete=complete,
        python=sys.executable,
    )


def arrived_bytes(params: dict[str, Any], path: str) -> int:
    """Return how many bytes of a file an interrupted transfer has left (receive_files.py)."""
    folder = os.path.dirname(os.path.join(params["root"], path))
    try:
        return os.path.getsize(os.path.join(folder, INCOMING + params["manifest"][path]["sha256"]))
    except OSError:
        return 0


def compare(params: dict[str, Any]) -> dict[str, list[Any]]:
    """Return the paths that differ, by the kind of difference, and `drift` for the report.

    `missing` files lack their content, `modes` only their mode, `extra` files are to be deleted, `folders` are missing
    or have another mode.
    """
    root, manifest = params["root"], params["manifest"]
    missing: list[str] = []
    modes: list[str] = []
    drift: list[dict[str, str]] = []
    for path, entry in sorted(manifest.items()):
        kind, is_, should = compare_file(os.path.join(root, path), entry)
        if kind:
            (missing if kind == "content" else modes).append(path)
            drift.append({"what": path, "is": is_, "should": should})
    extra = [path for folder in params["mirrored"] for path in extra_files(root, folder, params)]
    extra += [path for path in params["absent"] if os.path.lexists(os.path.join(root, path))]
    drift += [{"what": path, "is": "present", "should": "absent"} for path in extra]
    folders = [path for path, mode in sorted(params["folders"].items()) if mode_of(os.path.join(root, path)) != mode]
    drift += [
        {
            "what": (path or root) + "/",
            "is": mode_of(os.path.join(root, path)) or "missing",
            "should": params["folders"][path],
        }
        for path in folders
    ]
    return {"missing": missing, "modes": modes, "extra": extra, "folders": folders, "drift": drift}


def compare_file(path: str, entry: dict[str, str]) -> tuple[str, str, str]:
    """Return the kind of difference (content, mode or none), the actual and the required state."""
    if not os.path.isfile(path) or os.path.islink(path):
        return "content", "missing" if not os.path.lexists(path) else "not a file", "present"
    if digest(path) != entry["sha256"]:
        return "content", "other content", "sha256 " + entry["sha256"][:12]
    if mode_of(path) != entry["mode"]:
        return "mode", "mode " + mode_of(path), "mode " + entry["mode"]
    return "", "", ""


def mode_of(path: str) -> str:
    """Return the mode as four octal digits, empty for a missing file."""
    try:
        return f"{stat.S_IMODE(os.lstat(path).st_mode):04o}"
    except OSError:
        return ""


def digest(path: str) -> str:
    """Return the SHA-256 of a file."""
    total = hashlib.sha256()
    with open(path, "rb") as file:
        for block in iter(lambda: file.read(CHUNK), b""):
            total.update(block)
    return total.hexdigest()


def extra_files(root: str, folder: str, params: dict[str, Any]) -> list[str]:
    """Return the files in a mirrored folder that are neither in the manifest nor ignored."""
    extra = []
    for base, folders, files in os.walk(os.path.join(root, folder)):
        links = [name for name in folders if os.path.islink(os.path.join(base, name))]
        folders[:] = [n for n in folders if n not in links and not ignored(n, params)]
        for name in sorted(files + links):
            path = os.path.relpath(os.path.join(base, name), root)
            if path not in params["manifest"] and not ignored(name, params):
                extra.append(path)
    return extra


def ignored(name: str, params: dict[str, Any]) -> bool:
    """Return whether a name matches one of the ignored patterns."""
    return any(fnmatch.fnmatch(name, pattern) for pattern in params["ignored"])


def repair(params: dict[str, Any], differences: dict[str, list[Any]]) -> None:
    """Make the files equal to the manifest.

    Raises:
        OSError: if a file cannot be written.
        ValueError: if files differ afterwards.
    """
    root = params["root"]
    os.makedirs(root, exist_ok=True)
    for path in sorted(params["folders"]):
        os.makedirs(os.path.join(root, path), exist_ok=True)
        os.chmod(os.path.join(root, path), int(params["folders"][path], 8))
    for path in differences["modes"]:
        os.chmod(os.path.join(root, path), int(params["manifest"][path]["mode"], 8))
    for path in differences["extra"]:
        delete(root, path, params["mirrored"])
    if drift := compare(params)["drift"]:
        raise ValueError(f"files still differ after the transfer: {drift[:3]}")


def delete(root: str, path: str, mirrored: list[str]) -> None:
    """Delete a file, and folders that are empty without it, up to the mirrored one."""
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
