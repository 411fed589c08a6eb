#!/usr/bin/python
"""Installs packages of Debian and its kin: the lists and then the packages, in one go.

Not Ansible's apt module: it needs python3-apt, which a bare node does not have.
"""

from __future__ import annotations

from ansible.module_utils.basic import AnsibleModule

DOCUMENTATION = r"""
module: orch_packages
short_description: Installs packages by apt-get
description:
  - Refreshes the lists of packages, and installs what it is told. Lists that cannot be refreshed
    fail nothing, as those that are there may do.
options:
  names: {description: The packages., type: list, elements: str, required: true}
author: [orch]
"""
EXAMPLES = r"""
- name: Install system packages
  orch_packages: {names: [openssh-client, libhwloc15]}
"""
UPDATE = ("apt-get", "update", "--quiet", "-o", "Acquire::Languages=none")
INSTALL = ("apt-get", "install", "--yes", "--quiet", "--no-install-recommends")


def main() -> None:
    names = {"type": "list", "elements": "str", "required": True}
    module = AnsibleModule(argument_spec={"names": names})
    quiet = {"DEBIAN_FRONTEND": "noninteractive"}
    failed, _, before = module.run_command([*UPDATE])
    code, _, words = module.run_command([*INSTALL, *module.params["names"]], environ_update=quiet)
    if code != 0:
        words = (before if failed else "") + words
        module.fail_json(msg="apt-get install failed", rc=code, stderr=words)
    module.exit_json(changed=True)


if __name__ == "__main__":
    main()
