#!/usr/bin/python
"""A lock file on a node, by which one controller at a time changes it."""

from __future__ import annotations

import fcntl
import json
import os
import pwd
import socket
import tempfile
import time
from typing import Any, TextIO

from ansible.module_utils.basic import AnsibleModule

DOCUMENTATION = r"""
module: orch_lock
short_description: Take, renew or release the lock of a node
description:
  - The lock is the file .lock in orch's folder. A controller with the same token holds the same lock, so that an
    interrupted controller can continue at once.
  - The lock of another controller fails the task, unless it was not renewed for some time. The time is measured by
    the kernel's clock since boot, which cannot be set. For a lock that another machine wrote to a shared folder, it
    is measured by the clock of the file system.
  - The task fails if another user than the present one and root owns the folder, or if all users can write it.
  - The task never reports a change.
options:
  root: {description: Folder of orch on the node., type: path, required: true}
  owner:
    description: The controller - token, user, host, pid and command.
    type: dict
    required: true
  state:
    description: Take, renew or release the lock.
    choices: [present, renewed, absent]
    default: present
  seconds:
    description: Seconds without renewal after which a lock is taken over.
    type: int
    default: 3600
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
FIELDS = {"token", "user", "host", "pid", "what", "started", "boot", "renewed", "machine"}


class HeldError(Exception):
    """The lock belongs to another controller."""


class UntrustedError(Exception):
    """Another user could have written programs into the folder."""


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "root": {"type": "path", "required": True},
            "owner": {"type": "dict", "required": True},
            "state": {"choices": ["present", "renewed", "absent"], "default": "present"},
            "seconds": {"type": "int", "default": 3600},
        },
        supports_check_mode=True,
    )
    params, note = module.params, ""
    path = os.path.join(params["root"], NAME)
    try:
        if module.check_mode:
            pass
        elif params["state"] == "present":
            note = acquire(path, params["owner"], params["seconds"])
        elif params["state"] == "renewed":
            renew(path, params["owner"])
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
        HeldError: if another controller holds the lock.
        UntrustedError: if the folder was there, and another user could have written it.
    """
    os.makedirs(os.path.dirname(path), mode=0o755, exist_ok=True)
    check_folder(os.path.dirname(path))
    with locked_file(path, os.O_RDWR | os.O_CREAT) as file:
        holder = read_holder(file)
        if holder is None or holder["token"] == owner["token"]:
            write_holder(file, owner)
            return ""
        age = seconds_since_renewal(holder, path)
        if age < seconds:
            raise HeldError(f"{describe(holder)}; if it has ended, remove {path}")
        write_holder(file, owner)
    return f"took over a lock that was renewed {age / 60:.0f} minutes ago: {describe(holder)}"


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


def renew(path: str, owner: dict[str, Any]) -> None:
    """Renew the lock, unless it was released in the meantime.

    Raises:
        HeldError: if another controller has taken it over.
    """
    try:
        with locked_file(path, os.O_RDWR) as file:
            holder = read_holder(file)
            if holder is None or holder["token"] != owner["token"]:
                name = describe(holder) if holder else "its lock is damaged"
                raise HeldError(f"another controller has taken over this node: {name}")
            write_holder(file, owner, holder["started"])
    except FileNotFoundError:
        pass


def seconds_since_renewal(holder: dict[str, Any], path: str) -> float:
    """Return the seconds since the holder renewed its lock.

    After a reboot of this machine, the count begins at the boot. Other machines that share the folder, such as login
    nodes, have another uptime: the clock of the file system counts for their locks.
    """
    boot, now = since_boot()
    if holder["boot"] == boot:
        return now - float(holder["renewed"])
    if all(this_machine()) and holder["machine"] == this_machine():
        return now
    with tempfile.NamedTemporaryFile(prefix=NAME, dir=os.path.dirname(path)) as probe:
        return os.fstat(probe.fileno()).st_mtime - os.stat(path).st_mtime


def this_machine() -> list[str]:
    """Return the host name, the id of the installation and the process namespace, which survive a reboot.

    Containers of one image differ by the namespace, also on several hosts.
    """
    try:
        with open("/etc/machine-id") as file:
            return [socket.gethostname(), file.read().strip(), os.readlink("/proc/self/ns/pid")]
    except OSError:
        return [socket.gethostname(), "", ""]


def since_boot() -> tuple[str, float]:
    """Return the id of this boot, and the seconds since then, which no change of the clock affects."""
    with open("/proc/sys/kernel/random/boot_id") as file:
        return file.read().strip(), time.clock_gettime(time.CLOCK_BOOTTIME)


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


def write_holder(file: TextIO, owner: dict[str, Any], started: str = "") -> None:
    """Write the holder with the time of this renewal."""
    started = started or time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime())
    boot, now = since_boot()
    file.seek(0)
    file.truncate()
    renewal = {"boot": boot, "renewed": now, "machine": this_machine()}
    json.dump({**owner, "started": started, **renewal}, file)
    file.flush()
    os.fchmod(file.fileno(), 0o644)  # despite the umask: other users may read who holds the lock


def describe(holder: dict[str, Any]) -> str:
    """Return who holds the lock, for what and since when."""
    return "{user}@{host} (process {pid}) has been {what}ing this node since {started}".format(**holder)


if __name__ == "__main__":
    main()
