#!/usr/bin/python
"""Installation of packages on Debian and its derivatives.

Ansible's apt module needs python3-apt, which is missing on bare nodes.
"""

from __future__ import annotations

from ansible.module_utils.basic import AnsibleModule

DOCUMENTATION = r"""
module: orch_packages
short_description: Install packages with apt-get
description:
  - Updates the package lists and installs the packages. A failed update is ignored, because the existing lists may
    be sufficient.
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
    variables = {"DEBIAN_FRONTEND": "noninteractive"}
    update_code, _, update_error = module.run_command([*UPDATE])
    code, _, error = module.run_command([*INSTALL, *module.params["names"]], environ_update=variables)
    if code != 0:
        module.fail_json(msg="apt-get install failed", rc=code, stderr=(update_error if update_code else "") + error)
    module.exit_json(changed=True)


if __name__ == "__main__":
    main()
