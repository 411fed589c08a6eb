"""The agent of a node of a job: `node.py slurm-agent RUN_DIR HOST:PORT`, one task of one step.

It connects to the supervisor, tells what its node is, and then is the agent that every run has on
its nodes: what it reads and writes goes through that connection, each line with a signature.
"""

from __future__ import annotations

import json
import os
import socket
import sys
import time
from pathlib import Path

from orch_node.agent import agent
from orch_node.protocol import slurm, values
from orch_node.protocol.cores import cores_of
from orch_node.protocol.slurm import Hello
from orch_node.slurm.signed_lines import AGENT, SUPERVISOR, SignedLines, connection_key, nonce
from orch_node.standalone import facts

KEY = "ORCH_JOB_KEY"
CONNECT_SECONDS = 30.0
SHARED_SECONDS = 10.0  # until a shared file system shows what another node has written
MAX_NONCE_BYTES = 256


def main(argv: list[str]) -> int:
    if len(argv) != 2:
        print("usage: node.py slurm-agent RUN_DIR HOST:PORT", file=sys.stderr)
        return 2
    run_dir, (host, _, port) = argv[0], argv[1].rpartition(":")
    node, key = os.environ["SLURMD_NODENAME"], os.environ.pop(KEY, "")
    if not is_shared(Path(run_dir)):
        print(
            f"{node} does not see {run_dir} of node0. Choose a folder that all nodes share: --runs-dir", file=sys.stderr
        )
        return 1
    try:
        connection = socket.create_connection((host, int(port)), timeout=CONNECT_SECONDS)
        lines = introduce(node, key, connection)
    except OSError as error:
        print(f"{node} does not reach node0 at {argv[1]}: {error}", file=sys.stderr)
        return 1
    connection.settimeout(None)
    os.dup2(connection.fileno(), 0)
    os.dup2(connection.fileno(), 1)
    connection.close()
    return agent.main([run_dir, node, f"{run_dir}/claims/{node}"], lines)


def is_shared(run_dir: Path) -> bool:
    """Return whether this node sees what node0 has written into the run's folder."""
    deadline = time.monotonic() + SHARED_SECONDS
    while not (run_dir / slurm.CONFIG).exists():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.5)
    return True


def introduce(node: str, key: str, connection: socket.socket) -> SignedLines:
    """Send the first line, which proves that the key is known.

    Raises:
        OSError: if the other end does not behave like a supervisor.
    """
    received = b""
    while not received.endswith(b"\n"):
        piece = connection.recv(MAX_NONCE_BYTES)
        received += piece
        if not piece or len(received) > MAX_NONCE_BYTES:
            raise OSError("no supervisor answers there")
    agent_nonce = nonce()
    signing_key = connection_key(key, received.strip().decode(errors="replace"), agent_nonce)
    lines = SignedLines(signing_key, sender=AGENT, receiver=SUPERVISOR)
    line = json.dumps(values.record(hello(node, connection))).encode() + b"\n"
    connection.sendall(agent_nonce.encode() + b" " + lines.seal(line))
    return lines


def hello(node: str, connection: socket.socket) -> Hello:
    address = connection.getsockname()[0]
    cpus = facts.allowed_cpus()
    granted = granted_cpus(os.environ, len(cpus))
    places = [facts.topology(cpu) for cpu in cpus[:granted]]
    return Hello(
        node=node,
        host=socket.gethostname(),
        cores=cores_of(tuple((p["numa"], p["socket"], p["core"], p["cpu"]) for p in places)),
        confined=len(cpus) <= granted,
        flags=tuple(facts.cpu_flags()),
        address=address,
        interface=interface_of(address),
    )


def granted_cpus(environ: os._Environ[str] | dict[str, str], have: int) -> int:
    """Return the number of CPUs that the job has on this node."""
    number = int(environ.get("SLURM_NODEID", "0"))
    counts = slurm.cpu_counts(environ.get("SLURM_JOB_CPUS_PER_NODE", ""))
    return min(counts[number], have) if number < len(counts) else have


def interface_of(address: str) -> str:
    """The interface that has the address; the loopback one where none is known to."""
    found = facts.interfaces()
    return next((name for name, addresses in found.items() if address in addresses), "lo")
