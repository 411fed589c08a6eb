#!/usr/bin/python
"""A lock file on a node, by which one controller at a time changes it."""

from __future__ import annotations

import fcntl
import json
import os
import pwd
import tempfile
import time
from typing import Any, TextIO

from ansible.module_utils.basic import AnsibleModule

DOCUMENTATION = r"""
module: orch_lock
short_description: Take or release the lock of a node
description:
  - The lock is the file .lock in orch's folder. A controller with the same token holds the same lock, so that an
    interrupted controller can continue at once.
  - The lock of another controller fails the task, unless it was taken long ago by the clock of the file system, which
    all machines share that see the folder. No playbook takes that long.
  - The task fails if the same command already holds the lock for another node, because nodes must not share the folder.
  - The task fails if another user than the present one and root owns the folder, or if all users can write it.
  - The task never reports a change.
options:
  root: {description: Folder of orch on the node., type: path, required: true}
  owner:
    description: The controller - token, user, host, pid and command.
    type: dict
    required: true
  node: {description: Name of the node in the inventory., type: str, default: ""}
  state:
    description: Take or release the lock.
    choices: [present, absent]
    default: present
  seconds:
    description: Seconds after which a lock is taken over.
    type: int
    default: 21600
author: [orch]
"""
EXAMPLES = r"""
- name: Lock the node
  orch_lock:
    root: /opt/orch
    owner: {token: f00, user: me, host: laptop, pid: 1, what: provision}
"""
RETURN = r"""
note: {description: The holder whose lock was taken over., returned: always, type: str}
"""

NAME = ".lock"
FIELDS = {"token", "user", "host", "pid", "what", "started"}


class HeldError(Exception):
    """The lock belongs to another controller."""


class UntrustedError(Exception):
    """Another user could have written programs into the folder."""


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "root": {"type": "path", "required": True},
            "owner": {"type": "dict", "required": True},
            "node": {"type": "str", "default": ""},
            "state": {"choices": ["present", "absent"], "default": "present"},
            "seconds": {"type": "int", "default": 21600},
        },
        supports_check_mode=True,
    )
    params, note = module.params, ""
    path = os.path.join(params["root"], NAME)
    try:
        if module.check_mode:
            pass
        elif params["state"] == "present":
            note = acquire(path, {**params["owner"], "node": params["node"]}, params["seconds"])
        else:
            release(path, params["owner"])
    except (HeldError, UntrustedError) as error:
        module.fail_json(msg=str(error))
    except OSError as error:
        module.fail_json(msg=f"{path}: {error.strerror}")
    module.exit_json(changed=False, note=note)


def acquire(path: str, owner: dict[str, Any], seconds: int) -> str:
    """Take the lock and return a note about a lock that was taken over, or an empty text.

    Raises:
        HeldError: if another controller holds the lock, or this command holds it for another node.
        UntrustedError: if the folder was there, and another user could have written it.
    """
    os.makedirs(os.path.dirname(path), mode=0o755, exist_ok=True)
    check_folder(os.path.dirname(path))
    with locked_file(path, os.O_RDWR | os.O_CREAT) as file:
        holder = read_holder(file)
        if holder is None or holder["token"] == owner["token"]:
            check_node(holder or owner, owner, os.path.dirname(path))
            write_holder(file, owner)
            return ""
        age = seconds_since_change(path)
        if age < seconds:
            raise HeldError(f"{describe(holder)}; if it has ended, remove {path}")
        write_holder(file, owner)
    return f"took over a lock that was taken {age / 3600:.0f} hours ago: {describe(holder)}"


def check_node(holder: dict[str, Any], owner: dict[str, Any], root: str) -> None:
    """Raise HeldError if the same command holds the lock for another node."""
    nodes = sorted({str(holder.get("node")), str(owner.get("node"))})
    if holder["pid"] == owner["pid"] and len(nodes) > 1:
        names = " and ".join(nodes)
        raise HeldError(
            f"{names} share {root}: set orch_root to a local folder of each node, and list each machine only once"
        )


def check_folder(root: str) -> None:
    """Raise UntrustedError if another user than this one and root owns the folder, or everybody can write it.

    The controller runs programs from it. In /scratch, another user may have created a folder with its name.
    """
    status = os.stat(root)
    if status.st_uid not in (os.geteuid(), 0):
        raise UntrustedError(f"{root} is not trusted: it belongs to the user {user_name(status.st_uid)}")
    if status.st_mode & 0o002:
        raise UntrustedError(f"{root} is not trusted: all users can write it (`chmod o-w` prevents that)")


def user_name(uid: int) -> str:
    """Return the name of a user, or the number of one without a name."""
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


def seconds_since_change(path: str) -> float:
    """Return the age of a file by the clock of its file system."""
    with tempfile.NamedTemporaryFile(prefix=NAME, dir=os.path.dirname(path)) as probe:
        return os.fstat(probe.fileno()).st_mtime - os.stat(path).st_mtime


def release(path: str, owner: dict[str, Any]) -> None:
    """Release the lock, unless another controller has taken it over."""
    try:
        with locked_file(path, os.O_RDWR) as file:
            if (read_holder(file) or owner)["token"] == owner["token"]:
                os.unlink(path)
    except FileNotFoundError:
        pass


def locked_file(path: str, flags: int) -> TextIO:
    """Return the open lock file, locked against other processes until it is closed."""
    while True:
        file = os.fdopen(os.open(path, flags | os.O_NOFOLLOW, 0o644), "r+")
        fcntl.flock(file, fcntl.LOCK_EX)
        if is_at(path, file):
            return file
        file.close()  # the lock was released while we waited


def is_at(path: str, file: TextIO) -> bool:
    """Return whether the path still names the open file."""
    try:
        return os.path.samestat(os.stat(path), os.fstat(file.fileno()))
    except FileNotFoundError:
        return False


def read_holder(file: TextIO) -> dict[str, Any] | None:
    """Return the holder, None if there is none or its record is incomplete."""
    try:
        holder = json.load(file)
    except ValueError:
        return None
    return holder if isinstance(holder, dict) and holder.keys() >= FIELDS else None


def write_holder(file: TextIO, owner: dict[str, Any]) -> None:
    """Write the holder with the present time."""
    file.seek(0)
    file.truncate()
    json.dump({**owner, "started": time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime())}, file)
    file.flush()
    os.fchmod(file.fileno(), 0o644)  # despite the umask: other users may read who holds the lock


def describe(holder: dict[str, Any]) -> str:
    """Return who holds the lock, for what and since when."""
    return "{user}@{host} (process {pid}) has been {what}ing this node since {started}".format(**holder)


if __name__ == "__main__":
    main()
