#!/usr/bin/python
"""Collection of everything that the preflight needs from a node, in one call that changes nothing."""

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
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from ansible.module_utils.basic import AnsibleModule

DOCUMENTATION = r"""
module: orch_probe
short_description: Collect the state of a node before provisioning
description:
  - Runs facts.py on the node, searches for programs and libraries, reads the public host keys and /etc/hosts, and
    connects to the other nodes of the cluster by address and by name.
options:
  facts_script: {description: Text of facts.py., type: str, required: true}
  root: {description: Folder of orch on the node; empty for the default., type: str, default: ""}
  stack: {description: Name of the stack., type: str, required: true}
  peers:
    description: All nodes of the cluster, each with name, address and port.
    type: list
    elements: dict
    default: []
  seconds: {description: Timeout in seconds of one connection., type: float, default: 4}
author: [orch]
"""
EXAMPLES = r"""
- name: Probe the node
  orch_probe:
    facts_script: "{{ lookup('ansible.builtin.file', 'train/facts.py') }}"
    stack: current
"""
RETURN = r"""
probe: {description: The state of the node., returned: always, type: dict}
"""

LIBRARIES = ("libhwloc.so.15", "libtcmalloc_minimal.so.4")
# On nodes with RDMA devices: libfabric's providers need them, and the stack does not contain them.
RDMA_LIBRARIES = ("libibverbs.so.1", "librdmacm.so.1", "libmlx5.so.1")
LIBRARY_FOLDERS = ("/usr/lib/*-linux-gnu", "/usr/lib64", "/usr/lib", "/usr/local/lib")
PROGRAM_PATH = os.pathsep.join((os.environ.get("PATH", ""), "/usr/sbin", "/usr/bin", "/sbin", "/bin"))


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "facts_script": {"type": "str", "required": True},
            "root": {"type": "str", "default": ""},
            "stack": {"type": "str", "required": True},
            "peers": {"type": "list", "elements": "dict", "default": []},
            "seconds": {"type": "float", "default": 4.0},
        },
        supports_check_mode=True,
    )
    params = module.params
    try:
        root = find_root(params["root"])
    except ValueError as error:
        module.fail_json(msg=str(error))
    prefix = os.path.join(root, "stacks", params["stack"])
    probe = {
        "user": subprocess.run(["id", "-un"], capture_output=True, text=True).stdout.strip(),
        "uid": os.getuid(),
        "root": root,
        "machine": platform.machine(),
        "python": list(sys.version_info[:3]),
        "python_path": sys.executable,
        "libc": platform.libc_ver()[1],
        "os": os_release(),
        "sudo": os.getuid() == 0 or sudo_without_password(),
        "disk_free": shutil.disk_usage(existing_parent(root)).free,
        "writable": os.access(existing_parent(root), os.W_OK),
        "noexec": bool(os.statvfs(existing_parent(root)).f_flag & os.ST_NOEXEC),
        "missing": missing_packages(),
        "host_keys": host_keys(),
        "hosts_file": read("/etc/hosts"),
        "peers": peers(params["peers"], params["seconds"]),
        "facts": run_facts(params["facts_script"], prefix),
        "time": time.time(),
    }
    module.exit_json(changed=False, probe=probe)


def run_facts(script: str, prefix: str) -> Any:
    """Return the output of facts.py for the environment of a stack."""
    command = [sys.executable, "-I", "-S", "-", prefix]
    done = subprocess.run(command, input=script, capture_output=True, text=True, timeout=30)
    if done.returncode != 0:
        raise RuntimeError("facts.py failed: " + done.stderr)
    return json.loads(done.stdout)


def sudo_without_password() -> bool:
    """Return whether the user may use sudo without a password."""
    if not shutil.which("sudo"):
        return False
    return subprocess.run(["sudo", "-n", "true"], capture_output=True).returncode == 0


def find_root(setting: str) -> str:
    """Return the folder of orch: the setting of the inventory, or the default of the user.

    Raises:
        ValueError: for a relative path, which would depend on the current folder of each program.
    """
    if setting and not os.path.isabs(setting):
        raise ValueError(f"orch_root is {setting!r}: use an absolute path")
    home = os.path.expanduser("~")
    return setting or ("/opt/orch" if os.getuid() == 0 else os.path.join(home, "orch"))


def existing_parent(path: str) -> str:
    """Return the path or its nearest parent that exists."""
    path = os.path.abspath(path)
    while not os.path.exists(path):
        path = os.path.dirname(path)
    return path


def missing_packages() -> list[str]:
    """Return the programs and libraries that the role `base` has to install."""
    programs = [] if shutil.which("ssh", path=PROGRAM_PATH) else ["ssh"]
    return programs + [
        name
        for name in (*LIBRARIES, *(RDMA_LIBRARIES if glob.glob("/sys/class/infiniband/*") else ()))
        if not any(glob.glob(os.path.join(folder, name)) for folder in LIBRARY_FOLDERS)
    ]


def host_keys() -> list[str]:
    """Return type and key of each public host key, without the comment."""
    lines = [read(path) for path in sorted(glob.glob("/etc/ssh/ssh_host_*_key.pub"))]
    return [" ".join(line.split()[:2]) for line in lines if line.split()]


def os_release() -> dict[str, str]:
    """Return ID and ID_LIKE of os-release(5)."""
    fields = [line.partition("=") for line in read("/etc/os-release").splitlines()]
    values = {key: value.strip('"') for key, _, value in fields}
    return {"id": values.get("ID", ""), "like": values.get("ID_LIKE", "")}


def read(path: str) -> str:
    """Return the text of a file, empty if it cannot be read."""
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read()
    except OSError:
        return ""


def peers(nodes: list[dict[str, Any]], seconds: float) -> dict[str, dict[str, Any]]:
    """Return how this node reaches each node of the cluster."""
    if len(nodes) < 2:
        return {}
    with ThreadPoolExecutor(max_workers=32) as pool:
        return dict(pool.map(lambda node: (node["name"], query_peer(node, seconds)), nodes))


def query_peer(node: dict[str, Any], seconds: float) -> dict[str, Any]:
    """Return the addresses of a node's name, and whether its sshd responds."""
    peer = {"resolves": addresses(node["name"]), "address": "", "error": "", "source": ""}
    candidates = addresses(node["address"])
    if not candidates:
        return {**peer, "error": node["address"] + " cannot be resolved"}
    address = candidates[0]
    error = ssh_error(address, int(node["port"]), seconds)
    return {**peer, "address": address, "error": error, "source": source_address(address)}


def ssh_error(address: str, port: int, seconds: float) -> str:
    """Return why sshd cannot be reached, empty if it responds; a frozen node only accepts the connection."""
    try:
        with socket.create_connection((address, port), timeout=seconds) as connection:
            return "" if connection.recv(4).startswith(b"SSH-") else f"port {port} does not speak ssh"
    except OSError as error:
        return str(error.strerror or error)


def source_address(address: str) -> str:
    """Return the address of this node from which packets to the peer leave."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect((address, 9))  # no packet is sent
            return str(probe.getsockname()[0])
        except OSError:
            return ""


def addresses(name: str) -> list[str]:
    """Return the addresses of a name."""
    try:
        entries = socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)
    except OSError:
        return []
    return list(dict.fromkeys(str(entry[4][0]) for entry in entries))


if __name__ == "__main__":
    main()
