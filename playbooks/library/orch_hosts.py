#!/usr/bin/python
"""The names of the cluster's nodes in /etc/hosts."""

from __future__ import annotations

import ipaddress
import os
import re
import tempfile
from typing import Any

from ansible.module_utils.basic import AnsibleModule

DOCUMENTATION = r"""
module: orch_hosts
short_description: Writes the cluster's names into /etc/hosts
description:
  - Keeps one block of its own at the top of the file, and takes the names of the block away from
    lines with a loopback address, which would otherwise answer for them as well.
options:
  cluster: {description: Name that marks the block., type: str, required: true}
  nodes:
    description: The address and the names of each node.
    type: list
    elements: dict
    required: true
  path: {description: The file., type: path, default: /etc/hosts}
author: [orch]
"""
EXAMPLES = r"""
- name: Write the host names of the nodes
  orch_hosts:
    cluster: lab
    nodes: [{address: 10.0.0.1, names: [node0]}]
"""
RETURN = r"""
drift: {description: Lines that differed or differ., returned: always, type: list}
"""

LOOPBACK = ("127.", "::1")
# As RFC 1123 has host names; a line break or a blank in one would be another line, or another name.
NAME = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9_.-]{0,251}[A-Za-z0-9.])?")


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "cluster": {"type": "str", "required": True},
            "nodes": {"type": "list", "elements": "dict", "required": True},
            "path": {"type": "path", "default": "/etc/hosts"},
        },
        supports_check_mode=True,
    )
    given = module.params
    try:
        check(given["cluster"], given["nodes"])
    except (KeyError, TypeError, ValueError) as error:
        module.fail_json(msg=f"the names of the cluster cannot be written: {error}")
    with open(given["path"]) as file:
        before = file.read()
    after = rewrite(before, given["cluster"], given["nodes"])
    if after != before and not module.check_mode:
        replace(module, given["path"], after)
    module.exit_json(changed=after != before, drift=differences(given["path"], before, after))


def check(cluster: str, nodes: list[dict[str, Any]]) -> None:
    """Raises ValueError for what would be more than one line, or another one."""
    if not cluster.isprintable():
        raise ValueError(f"{cluster!r}: not a valid cluster name")
    for node in nodes:
        ipaddress.ip_address(node["address"].partition("%")[0])
        for text in [node["address"], *node["names"]]:
            if (text != node["address"] and not NAME.fullmatch(text)) or not text.isprintable():
                raise ValueError(f"{text!r}: not a valid host name")


def rewrite(text: str, cluster: str, nodes: list[dict[str, Any]]) -> str:
    begin, end = "# begin orch cluster " + cluster, "# end orch cluster " + cluster
    lines: list[str | None] = []
    inside = False
    for line in text.splitlines():
        if line.strip() in (begin, end):
            inside = line.strip() == begin
        elif not inside:
            lines.append(without(line, {name for node in nodes for name in node["names"]}))
    block = ["{} {}".format(node["address"], " ".join(node["names"])) for node in nodes]
    kept = [line for line in lines if line is not None]
    return "\n".join([begin, *block, end, *kept]) + "\n"


def without(line: str, names: set[str]) -> str | None:
    """A loopback line without the cluster's names; None if no name is left."""
    words = line.partition("#")[0].split()
    if len(words) < 2 or not words[0].startswith(LOOPBACK) or not names & set(words[1:]):
        return line
    left = [word for word in words[1:] if word not in names or word == "localhost"]
    return " ".join([words[0], *left]) if left else None


def replace(module: AnsibleModule, path: str, text: str) -> None:
    descriptor, staging = tempfile.mkstemp(dir=module.tmpdir)
    with os.fdopen(descriptor, "w") as file:
        file.write(text)
    os.chmod(staging, 0o644)
    # In a container the file is a mount, which cannot be replaced by a rename.
    module.atomic_move(staging, path, unsafe_writes=True)


def differences(path: str, before: str, after: str) -> list[dict[str, str]]:
    old, new = before.splitlines(), after.splitlines()
    gone = [{"what": path, "is": line, "should": "absent"} for line in old if line not in new]
    come = [{"what": path, "is": "absent", "should": line} for line in new if line not in old]
    return gone + come


if __name__ == "__main__":
    main()
