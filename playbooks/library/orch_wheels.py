#!/usr/bin/python
"""Which wheels are missing on this node, and how much of each has arrived."""

from __future__ import annotations

import hashlib
import os
import sys

from ansible.module_utils.basic import AnsibleModule

DOCUMENTATION = r"""
module: orch_wheels
short_description: Takes wheels from the controller
description:
  - Tells how much of each wheel is there already; the controller streams the rest. A wheel gets its
    name only when it is complete. Its hash is checked by who installs it.
options:
  folder: {description: Where the wheels go., type: path, required: true}
  wheels: {description: File and sha256 of each., type: list, elements: dict, required: true}
author: [orch]
"""
EXAMPLES = r"""
- name: Push the wheels
  orch_wheels:
    folder: /opt/orch/wheels
    source: ~/.cache/orch/wheelhouse
    receiver: "{{ lookup('ansible.builtin.file', 'receive.py') }}"
    wheels: [{file: six.whl, sha256: "00"}]
"""
RETURN = r"""
present: {description: Bytes of each wheel that are there., returned: always, type: dict}
folder: {description: Where they are., returned: always, type: str}
python: {description: The Python that answered., returned: always, type: str}
"""

CHUNK = 1 << 20


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "folder": {"type": "path", "required": True},
            "wheels": {"type": "list", "elements": "dict", "required": True},
        },
        supports_check_mode=True,
    )
    given = module.params
    try:
        present = {wheel["file"]: size(given["folder"], wheel) for wheel in given["wheels"]}
    except OSError as error:
        module.fail_json(msg="{}: {}".format(given["folder"], error))
    module.exit_json(changed=False, present=present, folder=given["folder"], python=sys.executable)


def size(folder: str, wheel: dict[str, str]) -> int:
    """-1 for a whole wheel, else how many bytes have arrived."""
    whole = os.path.join(folder, wheel["file"])
    if os.path.exists(whole) and digest(whole) == wheel["sha256"]:
        return -1
    try:
        # Named by its hash: a piece of another version is never taken for one of this.
        return os.path.getsize(os.path.join(folder, "." + wheel["sha256"]))
    except OSError:
        return 0


def digest(path: str) -> str:
    total = hashlib.sha256()
    with open(path, "rb") as file:
        for block in iter(lambda: file.read(CHUNK), b""):
            total.update(block)
    return total.hexdigest()


if __name__ == "__main__":
    main()
