"""Pushes wheels to a node: only what is missing there, streamed, over any connection."""

from __future__ import annotations

import io
import json
import os
import shlex
from collections.abc import Iterator
from typing import Any

from ansible.errors import AnsibleActionFail
from ansible.plugins.action import ActionBase

# What is held in memory here for each node that is served at the moment.
PACK_BYTES = 64 * 1024 * 1024


class ActionModule(ActionBase):  # type: ignore[misc]
    _requires_connection = True

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        super().run(tmp, task_vars)
        given = dict(self._task.args)
        source, receiver = os.path.expanduser(given.pop("source")), given.pop("receiver")
        result: dict[str, Any] = self._execute_module("orch_wheels", module_args=given, task_vars=task_vars)
        if result.get("failed") or self._task.check_mode:
            return result
        parts = {wheel["file"]: "." + wheel["sha256"] for wheel in given["wheels"]}
        command = f"{shlex.quote(result['python'])} -c {shlex.quote(receiver)}"
        sent = 0
        for pieces in packs(source, wanted(result["present"], set(parts))):
            data = message(result["folder"], source, pieces, parts)
            done = self._low_level_execute_command(command, sudoable=False, in_data=data)
            if done["rc"] != 0:
                words = (done["stderr"] or done["stdout"]).strip()
                return {"failed": True, "msg": words[-500:] or "the transfer broke off"}
            sent += sum(piece["length"] for piece in pieces)
        return {"changed": sent > 0, "bytes": sent}


def wanted(present: Any, offered: set[str]) -> dict[str, int]:
    """What the node says of the wheels that it was offered; it names no other file of this machine
    and no place before a file's beginning."""
    return {
        file: offset
        for file, offset in dict(present).items()
        if file in offered and isinstance(offset, int) and offset >= -1
    }


def packs(source: str, present: dict[str, int]) -> Iterator[list[dict[str, Any]]]:
    """-> lists of pieces of at most PACK_BYTES together; what has arrived is left out."""
    pack: list[dict[str, Any]] = []
    room = PACK_BYTES
    for file, offset in sorted(present.items()):
        size = os.path.getsize(os.path.join(source, file))
        while 0 <= offset < size:
            length = min(room, size - offset)
            last = offset + length == size
            pack.append({"file": file, "offset": offset, "length": length, "last": last})
            offset, room = offset + length, room - length
            if room == 0:
                yield pack
                pack, room = [], PACK_BYTES
    if pack:
        yield pack


def message(folder: str, source: str, pieces: list[dict[str, Any]], parts: dict[str, str]) -> bytes:
    """What roles/stack/files/receive.py reads."""
    head = [
        {
            "part": parts[piece["file"]],
            "offset": piece["offset"],
            "length": piece["length"],
            "whole": piece["file"] if piece["last"] else "",
        }
        for piece in pieces
    ]
    first = json.dumps({"folder": folder, "pieces": head}).encode() + b"\n"
    total = len(first) + sum(piece["length"] for piece in pieces)
    # Filled in place and handed on as it is: each copy of it costs as much as encrypting it.
    data = io.BytesIO(bytes(total))
    data.write(first)
    with data.getbuffer() as room:
        at = len(first)
        for piece in pieces:
            fill(room[at : at + piece["length"]], os.path.join(source, piece["file"]), piece)
            at += piece["length"]
    return data.getvalue()


def fill(room: memoryview, path: str, piece: dict[str, Any]) -> None:
    with open(path, "rb") as wheel:
        wheel.seek(piece["offset"])
        if wheel.readinto(room) != piece["length"]:
            raise AnsibleActionFail(f"{path} has become shorter while it was sent")
