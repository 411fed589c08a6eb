#!/usr/bin/python
"""The host names of a cluster's nodes in /etc/hosts."""

from __future__ import annotations

import ipaddress
import os
import re
import tempfile
from typing import Any

from ansible.module_utils.basic import AnsibleModule

DOCUMENTATION = r"""
module: orch_hosts
short_description: Write the host names of a cluster to /etc/hosts
description:
  - Maintains one block at the top of the file, and removes the names of the block from lines with a loopback address.
options:
  cluster: {description: Name of the cluster; marks the block., type: str, required: true}
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
TEXT: dict[str, Any] = {"encoding": "utf-8", "errors": "surrogateescape"}  # a comment may have any bytes
# Host names by RFC 1123. A line break or a space would begin another line or name.
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
    params = module.params
    try:
        check(params["cluster"], params["nodes"])
    except (KeyError, TypeError, ValueError) as error:
        module.fail_json(msg=f"the host names of the cluster cannot be written: {error}")
    with open(params["path"], **TEXT) as file:
        before = file.read()
    after = rewrite(before, params["cluster"], params["nodes"])
    if after != before and not module.check_mode:
        replace(module, params["path"], after)
    module.exit_json(changed=after != before, drift=differences(params["path"], before, after))


def check(cluster: str, nodes: list[dict[str, Any]]) -> None:
    """Raise ValueError for a name or address that would change other lines of the file."""
    if not cluster.isprintable():
        raise ValueError(f"{cluster!r}: not a valid cluster name")
    for node in nodes:
        ipaddress.ip_address(node["address"].partition("%")[0])
        for text in [node["address"], *node["names"]]:
            if (text != node["address"] and not NAME.fullmatch(text)) or not text.isprintable():
                raise ValueError(f"{text!r}: not a valid host name")


def rewrite(text: str, cluster: str, nodes: list[dict[str, Any]]) -> str:
    """Return the text of the file with the block of the cluster."""
    begin, end = "# begin orch cluster " + cluster, "# end orch cluster " + cluster
    names = {name for node in nodes for name in node["names"]}
    lines: list[str] = []
    inside = False
    for line in text.splitlines():
        if line.strip() in (begin, end):
            inside = line.strip() == begin
        elif not inside:
            lines += remove_names(line, names)
    block = ["{} {}".format(node["address"], " ".join(node["names"])) for node in nodes]
    return "\n".join([begin, *block, end, *lines]) + "\n"


def remove_names(line: str, names: set[str]) -> list[str]:
    """Return a line without these names if it has a loopback address; nothing if no name remains."""
    address, *aliases = line.partition("#")[0].split() or [""]
    if not address.startswith(LOOPBACK) or not names & set(aliases):
        return [line]
    remaining = [alias for alias in aliases if alias not in names or alias == "localhost"]
    return [" ".join([address, *remaining])] if remaining else []


def replace(module: AnsibleModule, path: str, text: str) -> None:
    """Replace the file."""
    descriptor, staging = tempfile.mkstemp(dir=module.tmpdir)
    with os.fdopen(descriptor, "w", **TEXT) as file:
        file.write(text)
    os.chmod(staging, 0o644)
    # In a container the file is a mount point, which cannot be replaced by a rename.
    module.atomic_move(staging, path, unsafe_writes=True)


def differences(path: str, before: str, after: str) -> list[dict[str, str]]:
    """Return the lines that are removed and added."""
    old, new = (text.encode(**TEXT).decode(errors="replace").splitlines() for text in (before, after))
    removed = [{"what": path, "is": line, "should": "absent"} for line in old if line not in new]
    return removed + [{"what": path, "is": "absent", "should": line} for line in new if line not in old]


if __name__ == "__main__":
    main()
