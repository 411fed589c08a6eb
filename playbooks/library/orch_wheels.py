#!/usr/bin/python
"""The node's half of orch_wheels: takes wheels in pieces, and goes on where it was cut off."""

from __future__ import annotations

import hashlib
import os

from ansible.module_utils.basic import AnsibleModule

DOCUMENTATION = r"""
module: orch_wheels
short_description: Takes wheels from the controller
description:
  - Tells how much of each wheel is there already, and appends the pieces that arrive. A wheel gets
    its name only when it is complete and its hash is right.
options:
  folder: {description: Where the wheels go., type: path, required: true}
  wheels: {description: File and sha256 of each., type: list, elements: dict, required: true}
  pack: {description: A file with pieces one after the other., type: path}
  pieces:
    description: File, offset and length of each piece.
    type: list
    elements: dict
    default: []
author: [orch]
"""
EXAMPLES = r"""
- name: Push the wheels
  orch_wheels:
    folder: /opt/orch/wheels
    source: ~/.cache/orch/wheelhouse
    wheels: [{file: six.whl, sha256: "00"}]
"""
RETURN = r"""
present: {description: Bytes of each wheel that are there., returned: always, type: dict}
"""

CHUNK = 1 << 20


def main():
    module = AnsibleModule(
        argument_spec={
            "folder": {"type": "path", "required": True},
            "wheels": {"type": "list", "elements": "dict", "required": True},
            "pack": {"type": "path"},
            "pieces": {"type": "list", "elements": "dict", "default": []},
        },
        supports_check_mode=True,
    )
    given = module.params
    try:
        if given["pack"]:
            take(given)
            os.unlink(given["pack"])
        present = {wheel["file"]: size(given["folder"], wheel) for wheel in given["wheels"]}
    except (OSError, ValueError) as error:
        module.fail_json(msg="{}: {}".format(given["folder"], error))
    module.exit_json(changed=bool(given["pack"]), present=present)


def part(folder, wheel):
    """Named by its hash: a piece of another version is never taken for one of this."""
    return os.path.join(folder, "." + wheel["sha256"])


def size(folder, wheel):
    """-1 for a whole wheel, else how many bytes have arrived."""
    whole = os.path.join(folder, wheel["file"])
    if os.path.exists(whole) and digest(whole) == wheel["sha256"]:
        return -1
    try:
        return os.path.getsize(part(folder, wheel))
    except OSError:
        return 0


def digest(path):
    total = hashlib.sha256()
    with open(path, "rb") as file:
        for block in iter(lambda: file.read(CHUNK), b""):
            total.update(block)
    return total.hexdigest()


def take(given):
    os.makedirs(given["folder"], exist_ok=True)
    wheels = {wheel["file"]: wheel for wheel in given["wheels"]}
    with open(given["pack"], "rb") as pack:
        for piece in given["pieces"]:
            wheel = wheels[piece["file"]]
            append(pack, part(given["folder"], wheel), piece)
            if piece["last"]:
                finish(given["folder"], wheel)


def append(pack, path, piece):
    with open(path, "ab") as file:
        file.truncate(piece["offset"])
        file.seek(piece["offset"])
        left = piece["length"]
        while left:
            block = pack.read(min(CHUNK, left))
            if not block:
                raise ValueError(piece["file"] + " arrived short")
            file.write(block)
            left -= len(block)


def finish(folder, wheel):
    path = part(folder, wheel)
    if digest(path) != wheel["sha256"]:
        os.unlink(path)
        raise ValueError(wheel["file"] + " arrived damaged")
    os.replace(path, os.path.join(folder, wheel["file"]))


if __name__ == "__main__":
    main()
