"""Pushes wheels to a node: only what is missing there, in packs, over any connection."""

from __future__ import annotations

import os
import tempfile

from ansible.plugins.action import ActionBase

# What an interruption can cost; and each pack costs two round trips.
PACK_BYTES = 96 * 1024 * 1024
CHUNK = 1 << 20


class ActionModule(ActionBase):
    _requires_connection = True

    def run(self, tmp=None, task_vars=None):
        super().run(tmp, task_vars)
        given = dict(self._task.args)
        source = os.path.expanduser(given.pop("source"))
        result = self._execute_module("orch_wheels", module_args=given, task_vars=task_vars)
        if result.get("failed") or self._task.check_mode:
            return result
        sent = 0
        try:
            for pieces in packs(source, result["present"]):
                result = self._send(source, pieces, given, task_vars)
                if result.get("failed"):
                    return result
                sent += sum(piece["length"] for piece in pieces)
        finally:
            if self._connection._shell.tmpdir:
                self._remove_tmp_path(self._connection._shell.tmpdir)
        return {"changed": sent > 0, "bytes": sent}

    def _send(self, source, pieces, given, task_vars):
        if not self._connection._shell.tmpdir:
            self._make_tmp_path()
        remote = self._connection._shell.join_path(self._connection._shell.tmpdir, "pack")
        if len(pieces) == 1 and pieces[0]["offset"] == 0 and pieces[0]["last"]:
            self._transfer_file(os.path.join(source, pieces[0]["file"]), remote)
        else:
            with tempfile.NamedTemporaryFile() as pack:
                fill(pack, source, pieces)
                self._transfer_file(pack.name, remote)
        self._fixup_perms2((self._connection._shell.tmpdir, remote))
        arguments = {**given, "pack": remote, "pieces": pieces}
        return self._execute_module("orch_wheels", module_args=arguments, task_vars=task_vars)


def packs(source, present):
    """-> lists of pieces of at most PACK_BYTES together; what has arrived is left out."""
    pack, room = [], PACK_BYTES
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


def fill(pack, source, pieces):
    for piece in pieces:
        with open(os.path.join(source, piece["file"]), "rb") as wheel:
            wheel.seek(piece["offset"])
            left = piece["length"]
            while left:
                left -= pack.write(wheel.read(min(CHUNK, left)))
    pack.flush()
