"""Transfer of wheels to a node: missing parts only, streamed, over any connection."""

from __future__ import annotations

import io
import json
import os
import shlex
from collections.abc import Iterator
from typing import Any

from ansible.errors import AnsibleActionFail
from ansible.plugins.action import ActionBase

# Memory of the controller for each node that receives at the moment.
PACK_BYTES = 64 * 1024 * 1024


class ActionModule(ActionBase):  # type: ignore[misc]
    """The controller's part of orch_wheels."""

    _requires_connection = True

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        """Query how much of each wheel the node has, and send the rest."""
        super().run(tmp, task_vars)
        params = dict(self._task.args)
        source, receiver = os.path.expanduser(params.pop("source")), params.pop("receiver")
        result: dict[str, Any] = self._execute_module("orch_wheels", module_args=params, task_vars=task_vars)
        if result.get("failed") or self._task.check_mode:
            return result
        parts = {wheel["file"]: "." + wheel["sha256"] for wheel in params["wheels"]}
        command = f"{shlex.quote(result['python'])} -c {shlex.quote(receiver)}"
        sent = 0
        for pieces in packs(source, checked_offsets(result["present"], set(parts))):
            data = message(result["folder"], source, pieces, parts)
            done = self._low_level_execute_command(command, sudoable=False, in_data=data)
            if done["rc"] != 0:
                error = (done["stderr"] or done["stdout"]).strip()
                return {"failed": True, "msg": error[-500:] or "the transfer was interrupted"}
            sent += sum(piece["length"] for piece in pieces)
        return {"changed": sent > 0, "bytes": sent}


def checked_offsets(present: Any, offered: set[str]) -> dict[str, int]:
    """Return the node's offsets of offered wheels only: it must not name other files of the controller."""
    return {
        file: offset
        for file, offset in dict(present).items()
        if file in offered and isinstance(offset, int) and offset >= -1
    }


def packs(source: str, offsets: dict[str, int]) -> Iterator[list[dict[str, Any]]]:
    """Yield lists of pieces of at most PACK_BYTES together, without what has arrived.

    Args:
        source: the folder of the wheels.
        offsets: bytes of each wheel that the node has, -1 for all.
    """
    pack: list[dict[str, Any]] = []
    capacity = PACK_BYTES
    for file, offset in sorted(offsets.items()):
        size = os.path.getsize(os.path.join(source, file))
        while 0 <= offset < size:
            length = min(capacity, size - offset)
            last = offset + length == size
            pack.append({"file": file, "offset": offset, "length": length, "last": last})
            offset, capacity = offset + length, capacity - length
            if capacity == 0:
                yield pack
                pack, capacity = [], PACK_BYTES
    if pack:
        yield pack


def message(folder: str, source: str, pieces: list[dict[str, Any]], parts: dict[str, str]) -> bytes:
    """Return the input of roles/stack/files/receive.py for these pieces."""
    head = [
        {
            "part": parts[piece["file"]],
            "offset": piece["offset"],
            "length": piece["length"],
            "whole": piece["file"] if piece["last"] else "",
        }
        for piece in pieces
    ]
    first_line = json.dumps({"folder": folder, "pieces": head}).encode() + b"\n"
    # Filled in place, because each copy of a pack takes as long as its encryption.
    data = io.BytesIO(bytes(len(first_line) + sum(piece["length"] for piece in pieces)))
    data.write(first_line)
    with data.getbuffer() as buffer:
        position = len(first_line)
        for piece in pieces:
            path = os.path.join(source, piece["file"])
            with open(path, "rb") as wheel:
                wheel.seek(piece["offset"])
                if wheel.readinto(buffer[position : position + piece["length"]]) != piece["length"]:
                    raise AnsibleActionFail(f"{path} was truncated during the transfer")
            position += piece["length"]
    return data.getvalue()
