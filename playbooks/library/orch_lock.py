#!/usr/bin/python
"""One controller at a time changes a node: a file there says which."""

from __future__ import annotations

import fcntl
import json
import os
import socket
import tempfile
import time
from typing import Any, TextIO

from ansible.module_utils.basic import AnsibleModule

DOCUMENTATION = r"""
module: orch_lock
short_description: Takes a node for one controller, or gives it back
description:
  - The lock is the file .lock in orch's folder. Whoever has the same token has the same lock, so
    that a controller that was interrupted carries on at once.
  - A lock of another fails the task, unless it was not renewed for so long that its holder must be
    gone. That time is the kernel's since its boot, which no setting of a clock changes. If another
    machine that shares the folder holds the lock, it is that of the file system.
  - Never counts as a change.
options:
  root: {description: Folder of orch on the node., type: path, required: true}
  owner:
    description: The controller - token, user, host, pid, and what it is doing.
    type: dict
    required: true
  state:
    description: Take it, say that its holder still lives, or give it back.
    choices: [present, renewed, absent]
    default: present
  seconds:
    description: A lock that was not renewed for so long is taken over.
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
note: {description: Whose lock was taken over., returned: always, type: str}
"""

NAME = ".lock"


class Held(Exception):
    pass


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
    given, note = module.params, ""
    path = os.path.join(given["root"], NAME)
    try:
        if module.check_mode:
            pass
        elif given["state"] == "present":
            note = take(path, given["owner"], given["seconds"])
        elif given["state"] == "renewed":
            renew(path, given["owner"])
        else:
            release(path, given["owner"])
    except Held as held:
        module.fail_json(msg=str(held))
    except OSError as error:
        module.fail_json(msg=f"{path}: {error.strerror}")
    module.exit_json(changed=False, note=note)


def take(path: str, owner: dict[str, Any], seconds: int) -> str:
    """-> whose lock was taken over, if any. Raises Held."""
    os.makedirs(os.path.dirname(path), mode=0o755, exist_ok=True)
    with guarded(path, os.O_RDWR | os.O_CREAT) as file:
        holder = read(file)
        foreign = holder is not None and holder["token"] != owner["token"]
        age = age_of(holder, path) if holder else 0.0
        if holder and foreign and age < seconds:
            raise Held(f"{described(holder)}; if it is gone, remove {path}")
        write(file, owner)
    if not holder or not foreign:
        return ""
    return f"took over a lock of {age / 60:.0f} minutes ago: {described(holder)}"


def renew(path: str, owner: dict[str, Any]) -> None:
    """Only what is ours and was not given back in this moment. Raises Held."""
    try:
        with guarded(path, os.O_RDWR) as file:
            holder = read(file)
            if holder is None or holder["token"] != owner["token"]:
                raise Held(f"another has taken this node over: {described(holder or {})}")
            write(file, owner, holder.get("started"))
    except FileNotFoundError:
        pass


def age_of(holder: dict[str, Any], path: str) -> float:
    """Return the seconds since the holder renewed its lock.

    A reboot of this machine starts the count anew. Other machines that share the folder, such as
    login nodes, have another uptime: the clock of the file system counts for their locks.
    """
    boot, now = since_boot()
    renewed = holder.get("renewed")
    if holder.get("boot") == boot and isinstance(renewed, float):
        return now - renewed
    if all(this_machine()) and holder.get("machine") == this_machine():
        return now
    with tempfile.NamedTemporaryFile(prefix=NAME, dir=os.path.dirname(path)) as probe:
        return os.fstat(probe.fileno()).st_mtime - os.stat(path).st_mtime


def this_machine() -> list[str]:
    """Return the host name and the id of the installation, which survive a reboot."""
    try:
        with open("/etc/machine-id") as file:
            return [socket.gethostname(), file.read().strip()]
    except OSError:
        return [socket.gethostname(), ""]


def since_boot() -> tuple[str, float]:
    """This boot's id, and the seconds since it: no setting of a clock changes them."""
    with open("/proc/sys/kernel/random/boot_id") as file:
        return file.read().strip(), time.clock_gettime(time.CLOCK_BOOTTIME)


def release(path: str, owner: dict[str, Any]) -> None:
    """Only what is ours: another may have taken it over."""
    try:
        with guarded(path, os.O_RDWR) as file:
            if (read(file) or owner)["token"] == owner["token"]:
                os.unlink(path)
    except FileNotFoundError:
        pass


def guarded(path: str, flags: int) -> TextIO:
    """The file, shut to others that take, take over or release the lock in this moment."""
    while True:
        file = os.fdopen(os.open(path, flags | os.O_NOFOLLOW, 0o644), "r+")
        fcntl.flock(file, fcntl.LOCK_EX)
        if is_named(path, file):
            return file
        file.close()  # it was released while we waited


def is_named(path: str, file: TextIO) -> bool:
    try:
        return os.path.samestat(os.stat(path), os.fstat(file.fileno()))
    except FileNotFoundError:
        return False


def read(file: TextIO) -> dict[str, Any] | None:
    """The holder; None if there is none, or one that was cut off before it had written."""
    try:
        holder = json.load(file)
    except ValueError:
        return None
    return holder if isinstance(holder, dict) and "token" in holder else None


def write(file: TextIO, owner: dict[str, Any], since: str | None = None) -> None:
    started = since or time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime())
    boot, now = since_boot()
    file.seek(0)
    file.truncate()
    renewal = {"boot": boot, "renewed": now, "machine": this_machine()}
    json.dump({**owner, "started": started, **renewal}, file)
    file.flush()
    os.fchmod(file.fileno(), 0o644)  # whatever the umask: whoever it keeps out may read why


def described(holder: dict[str, Any]) -> str:
    words = "{user}@{host} (process {pid}) has been {what}ing this node since {started}"
    unknown = dict.fromkeys(("user", "host", "pid", "what", "started"), "?")
    return words.format(**{**unknown, **holder})


if __name__ == "__main__":
    main()
