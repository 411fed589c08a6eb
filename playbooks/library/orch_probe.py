#!/usr/bin/python
"""Everything that a preflight asks of a node, in one round trip. Changes nothing."""

from __future__ import annotations

import glob
import json
import os
import platform
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from ansible.module_utils.basic import AnsibleModule

DOCUMENTATION = r"""
module: orch_probe
short_description: Gathers what provisioning must know of a node
description:
  - Runs train/facts.py there, looks for programs and libraries, reads the public host keys and
    /etc/hosts, and tries to reach the other nodes of the cluster by address and by name.
options:
  facts_script: {description: Text of train/facts.py., type: str, required: true}
  root: {description: Folder of orch on the node; empty means its default., type: str, default: ""}
  stack: {description: Name of the stack., type: str, required: true}
  peers:
    description: All nodes of the cluster, each with name, address and port.
    type: list
    elements: dict
    default: []
  docker: {description: Whether there shall be a docker engine., type: bool, default: false}
  seconds: {description: How long one connection may take., type: float, default: 4}
author: [orch]
"""
EXAMPLES = r"""
- name: Probe the node
  orch_probe:
    facts_script: "{{ lookup('ansible.builtin.file', 'train/facts.py') }}"
    stack: current
"""
RETURN = r"""
probe: {description: What was found., returned: always, type: dict}
"""

PROGRAMS = ("ssh",)
LIBRARIES = ("libhwloc.so.15", "libtcmalloc_minimal.so.4")
# Of nodes with RDMA devices: libfabric's providers want them, and the stack does not bring them.
RDMA = ("libibverbs.so.1", "librdmacm.so.1", "libmlx5.so.1")
FOLDERS = ("/usr/lib/*-linux-gnu", "/usr/lib64", "/usr/lib", "/usr/local/lib")
SEARCH = os.pathsep.join((os.environ.get("PATH", ""), "/usr/sbin", "/usr/bin", "/sbin", "/bin"))


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "facts_script": {"type": "str", "required": True},
            "root": {"type": "str", "default": ""},
            "stack": {"type": "str", "required": True},
            "peers": {"type": "list", "elements": "dict", "default": []},
            "docker": {"type": "bool", "default": False},
            "seconds": {"type": "float", "default": 4.0},
        },
        supports_check_mode=True,
    )
    given = module.params
    try:
        root = folder_of_orch(given["root"])
    except ValueError as error:
        module.fail_json(msg=str(error))
    prefix = os.path.join(root, "stacks", given["stack"])
    probe = {
        "user": subprocess.run(["id", "-un"], capture_output=True, text=True).stdout.strip(),
        "uid": os.getuid(),
        "home": os.path.expanduser("~"),
        "root": root,
        "machine": platform.machine(),
        "python": list(sys.version_info[:3]),
        "python_path": sys.executable,
        "libc": platform.libc_ver()[1],
        "os": os_release(),
        "sudo": os.getuid() == 0 or sudo_without_password(),
        "disk_free": disk_free(root),
        "writable": writable(root),
        "missing": missing() + ([] if has_engine() or not given["docker"] else ["dockerd"]),
        "docker": given["docker"],
        "systemd": os.path.isdir("/run/systemd/system"),
        "host_keys": host_keys(),
        "hosts_file": read("/etc/hosts"),
        "peers": peers(given["peers"], given["seconds"]),
        "facts": facts(given["facts_script"], prefix),
        "time": time.time(),
    }
    module.exit_json(changed=False, probe=probe)


def facts(script: str, prefix: str) -> Any:
    command = [sys.executable, "-I", "-S", "-", prefix]
    done = subprocess.run(command, input=script, capture_output=True, text=True, timeout=30)
    if done.returncode != 0:
        raise RuntimeError("facts.py failed: " + done.stderr)
    return json.loads(done.stdout)


def sudo_without_password() -> bool:
    if not shutil.which("sudo"):
        return False
    return subprocess.run(["sudo", "-n", "true"], capture_output=True).returncode == 0


def folder_of_orch(given: str) -> str:
    """Raises ValueError for one that would be another for every program."""
    if given and not os.path.isabs(given):
        raise ValueError(f"orch_root is {given!r}: give it as an absolute path")
    home = os.path.expanduser("~")
    return given or ("/opt/orch" if os.getuid() == 0 else os.path.join(home, "orch"))


def existing_parent(path: str) -> str:
    path = os.path.abspath(path)
    while not os.path.exists(path):
        path = os.path.dirname(path)
    return path


def disk_free(root: str) -> int:
    return shutil.disk_usage(existing_parent(root)).free


def writable(root: str) -> bool:
    return os.access(existing_parent(root), os.W_OK)


def missing() -> list[str]:
    """The programs and libraries that the base role would install."""
    programs = [name for name in PROGRAMS if not shutil.which(name, path=SEARCH)]
    return programs + [
        name
        for name in (*LIBRARIES, *(RDMA if glob.glob("/sys/class/infiniband/*") else ()))
        if not any(glob.glob(os.path.join(folder, name)) for folder in FOLDERS)
    ]


def has_engine() -> bool:
    """Here, or one that answers from elsewhere."""
    if shutil.which("dockerd", path=SEARCH):
        return True
    program = shutil.which("docker", path=SEARCH)
    if program is None:
        return False
    return subprocess.run([program, "info"], capture_output=True).returncode == 0


def host_keys() -> list[str]:
    """Type and key of each public host key; the comment is of no use to anyone."""
    lines = [read(path) for path in sorted(glob.glob("/etc/ssh/ssh_host_*_key.pub"))]
    return [" ".join(line.split()[:2]) for line in lines if line.split()]


def os_release() -> dict[str, str]:
    pairs = [line.partition("=") for line in read("/etc/os-release").splitlines()]
    values = {key: value.strip('"') for key, _, value in pairs}
    return {"id": values.get("ID", ""), "like": values.get("ID_LIKE", "")}


def read(path: str) -> str:
    try:
        with open(path) as file:
            return file.read()
    except OSError:
        return ""


def peers(nodes: list[dict[str, Any]], seconds: float) -> dict[str, dict[str, Any]]:
    if len(nodes) < 2:
        return {}
    with ThreadPoolExecutor(max_workers=32) as pool:
        return dict(pool.map(lambda node: (node["name"], look(node, seconds)), nodes))


def look(node: dict[str, Any], seconds: float) -> dict[str, Any]:
    """How a peer is seen from here: what its name resolves to, and whether its sshd answers."""
    seen = {"resolves": addresses(node["name"]), "error": "", "source": ""}
    found = addresses(node["address"])
    seen["address"] = found[0] if found else ""
    if not found:
        seen["error"] = "no address is known for " + node["address"]
        return seen
    seen["error"] = next((text for text in knock(found[0], int(node["port"]), seconds)), "")
    seen["source"] = source(found[0])
    return seen


def knock(address: str, port: int, seconds: float) -> Iterator[str]:
    """Yields what is wrong, if anything. A frozen node accepts connections, so ask for a word."""
    try:
        with socket.create_connection((address, port), timeout=seconds) as link:
            if not link.recv(4).startswith(b"SSH-"):
                yield f"port {port} does not speak ssh"
    except OSError as error:
        yield str(error.strerror or error)


def source(address: str) -> str:
    """The own address that packets to the peer leave with."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect((address, 9))  # no packet is sent
            return str(probe.getsockname()[0])
        except OSError:
            return ""


def addresses(name: str) -> list[str]:
    try:
        found = socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)
    except OSError:
        return []
    return list(dict.fromkeys(str(entry[4][0]) for entry in found))


if __name__ == "__main__":
    main()
