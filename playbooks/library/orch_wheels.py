#!/usr/bin/python
"""The sizes of the wheels that have arrived on a node."""

from __future__ import annotations

import hashlib
import os
import sys

from ansible.module_utils.basic import AnsibleModule

DOCUMENTATION = r"""
module: orch_wheels
short_description: Transfer wheels from the controller
description:
  - Returns how much of each wheel has arrived; the action plugin of the same name streams the rest. A wheel gets its
    name only when it is complete. Its hash is checked at the installation.
options:
  folder: {description: The folder of the wheels., type: path, required: true}
  wheels: {description: File and sha256 of each., type: list, elements: dict, required: true}
author: [orch]
"""
EXAMPLES = r"""
- name: Push wheels
  orch_wheels:
    folder: /opt/orch/wheels
    source: ~/.cache/orch/wheelhouse
    receiver: "{{ lookup('ansible.builtin.file', 'receive.py') }}"
    wheels: [{file: six.whl, sha256: "00"}]
"""
RETURN = r"""
present: {description: Bytes of each wheel that have arrived., returned: always, type: dict}
folder: {description: The folder of the wheels., returned: always, type: str}
python: {description: The Python that runs the module., returned: always, type: str}
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
    params = module.params
    try:
        present = {wheel["file"]: arrived_bytes(params["folder"], wheel) for wheel in params["wheels"]}
    except OSError as error:
        module.fail_json(msg="{}: {}".format(params["folder"], error))
    module.exit_json(changed=False, present=present, folder=params["folder"], python=sys.executable)


def arrived_bytes(folder: str, wheel: dict[str, str]) -> int:
    """Return how many bytes of a wheel have arrived, -1 if it is complete."""
    path = os.path.join(folder, wheel["file"])
    if os.path.exists(path) and digest(path) == wheel["sha256"]:
        return -1
    try:
        # The part is named by the hash, so that it cannot belong to another version.
        return os.path.getsize(os.path.join(folder, "." + wheel["sha256"]))
    except OSError:
        return 0


def digest(path: str) -> str:
    """Return the SHA-256 of a file."""
    total = hashlib.sha256()
    with open(path, "rb") as file:
        for block in iter(lambda: file.read(CHUNK), b""):
            total.update(block)
    return total.hexdigest()


if __name__ == "__main__":
    main()
