#!/usr/bin/python
"""Installation of packages by apt-get or dnf.

Ansible's modules need python3-apt, which is missing on bare nodes, or python3-dnf, which RHEL 8 has only for a Python
that is too old for Ansible.
"""

from __future__ import annotations

from ansible.module_utils.basic import AnsibleModule

DOCUMENTATION = r"""
module: orch_packages
short_description: Install packages with apt-get or dnf
description:
  - Installs the packages. apt-get first updates the package lists; a failed update is ignored, because the existing
    lists may be sufficient.
options:
  names: {description: The packages., type: list, elements: str, required: true}
  family: {description: Family of the distribution., type: str, choices: [debian, rhel], default: debian}
author: [orch]
"""
EXAMPLES = r"""
- name: Install system packages
  orch_packages: {names: [openssh-client, libhwloc15]}
"""
RETURN = r"""
drift: {description: The packages that were or are missing., returned: always, type: list}
"""
UPDATE = ("apt-get", "update", "--quiet", "-o", "Acquire::Languages=none")
INSTALL = {
    "debian": ("apt-get", "install", "--yes", "--quiet", "--no-install-recommends"),
    "rhel": ("dnf", "install", "--assumeyes", "--quiet", "--setopt=install_weak_deps=False"),
}


def main() -> None:
    names = {"type": "list", "elements": "str", "required": True}
    family = {"type": "str", "choices": [*INSTALL], "default": "debian"}
    module = AnsibleModule(argument_spec={"names": names, "family": family}, supports_check_mode=True)
    drift = [{"what": "package " + name, "is": "missing", "should": "installed"} for name in module.params["names"]]
    if module.check_mode:
        module.exit_json(changed=True, drift=drift)
    command = INSTALL[module.params["family"]]
    variables = {"DEBIAN_FRONTEND": "noninteractive"}
    update_code, _, update_error = module.run_command([*UPDATE]) if command[0] == "apt-get" else (0, "", "")
    code, _, error = module.run_command([*command, *module.params["names"]], environ_update=variables)
    if code != 0:
        module.fail_json(
            msg=f"{command[0]} install failed", rc=code, stderr=(update_error if update_code else "") + error
        )
    module.exit_json(changed=True, drift=drift)


if __name__ == "__main__":
    main()
