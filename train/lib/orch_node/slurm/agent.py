"""The agent of a node of a job: `node.py slurm-agent RUN_DIR HOST:PORT`, one task of one step.

It connects to the supervisor, tells what its node is, and then is the agent that every run has on
its nodes: what it reads and writes goes through that connection.
"""

from __future__ import annotations

import json
import os
import re
import socket
import sys

from orch_node.agent import agent
from orch_node.protocol import values
from orch_node.protocol.cores import cores_of
from orch_node.protocol.slurm import Hello
from orch_node.standalone import facts

KEY = "ORCH_JOB_KEY"
CONNECT_SECONDS = 30.0


def main(argv: list[str]) -> int:
    if len(argv) != 2:
        print("usage: node.py slurm-agent RUN_DIR HOST:PORT", file=sys.stderr)
        return 2
    run_dir, (host, _, port) = argv[0], argv[1].rpartition(":")
    node = os.environ["SLURMD_NODENAME"]
    try:
        connection = socket.create_connection((host, int(port)), timeout=CONNECT_SECONDS)
    except OSError as error:
        print(f"{node} does not reach node0 at {argv[1]}: {error}", file=sys.stderr)
        return 1
    connection.settimeout(None)
    connection.sendall(json.dumps(values.record(hello(node, connection))).encode() + b"\n")
    os.dup2(connection.fileno(), 0)
    os.dup2(connection.fileno(), 1)
    connection.close()
    return agent.main([run_dir, node, f"{run_dir}/claims/{node}"])


def hello(node: str, connection: socket.socket) -> Hello:
    address = connection.getsockname()[0]
    cpus = facts.allowed_cpus()
    granted = granted_cpus(os.environ, len(cpus))
    places = [facts.topology(cpu) for cpu in cpus[:granted]]
    return Hello(
        key=os.environ.pop(KEY, ""),
        node=node,
        host=socket.gethostname(),
        cores=cores_of(tuple((p["numa"], p["socket"], p["core"], p["cpu"]) for p in places)),
        confined=len(cpus) <= granted,
        flags=tuple(facts.cpu_flags()),
        address=address,
        interface=interface_of(address),
    )


def granted_cpus(environ: os._Environ[str] | dict[str, str], have: int) -> int:
    """CPUs of the job on this node, as Slurm counts them: `2(x3),4` are those of four nodes."""
    text, number = environ.get("SLURM_JOB_CPUS_PER_NODE", ""), int(environ.get("SLURM_NODEID", "0"))
    counts: list[int] = []
    for count, times in re.findall(r"(\d+)(?:\(x(\d+)\))?", text):
        counts += [int(count)] * int(times or 1)
    return min(counts[number], have) if number < len(counts) else have


def interface_of(address: str) -> str:
    """The interface that has the address; the loopback one where none is known to."""
    found = facts.interfaces()
    return next((name for name, addresses in found.items() if address in addresses), "lo")
