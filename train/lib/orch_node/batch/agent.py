"""Run the agent of a job's node: `node.py job-agent RUN_DIR HOST:PORT`.

It connects to the supervisor and describes its node. From then on it is the agent that every run
has on its nodes; each line that it sends or receives over the connection has a signature.
"""

from __future__ import annotations

import os
import socket
import sys
import time
from pathlib import Path

from orch_node.agent import agent
from orch_node.batch.system import NodeSystem, find_system
from orch_node.protocol import batch, values
from orch_node.protocol.batch import Hello
from orch_node.protocol.cores import reported_cores
from orch_node.signed_lines import introduce
from orch_node.standalone import facts

KEY = "ORCH_JOB_KEY"
CONNECT_SECONDS = 30.0
SHARED_SECONDS = 10.0  # after which a shared file system shows what another node has written


def main(argv: list[str]) -> int:
    """Connect to the supervisor and serve its requests; return the exit code."""
    run_dir, (host, _, port), key = argv[0], argv[1].rpartition(":"), os.environ.pop(KEY, "")
    # node0 has written this file, which other nodes see if they share the folder.
    config_path, deadline = Path(run_dir, batch.CONFIG), time.monotonic() + SHARED_SECONDS
    while not config_path.exists() and time.monotonic() < deadline:
        time.sleep(0.5)
    if not config_path.exists():
        hint = "Choose a folder that all nodes share with --runs-dir"
        print(f"{socket.gethostname()} does not see {run_dir} of node0. {hint}", file=sys.stderr)
        return 1
    system = find_system(batch.parse(config_path.read_text()))
    node = system.node_name()
    try:
        connection = socket.create_connection((host, int(port)), timeout=CONNECT_SECONDS)
        line = f"{values.render(hello(system, node, connection))}\n".encode()
        lines = introduce(connection, key, line, CONNECT_SECONDS)
    except OSError as error:
        print(f"{node} cannot reach node0 at {argv[1]}: {error}", file=sys.stderr)
        return 1
    os.dup2(connection.fileno(), 0)
    os.dup2(connection.fileno(), 1)
    connection.close()
    return agent.main([run_dir, node, f"{run_dir}/claims/{node}"], lines)


def hello(system: NodeSystem, node: str, connection: socket.socket) -> Hello:
    address = connection.getsockname()[0]
    cpus = sorted(os.sched_getaffinity(0))
    granted = system.granted_cpus(len(cpus))
    return Hello(
        node=node,
        host=socket.gethostname(),
        cores=reported_cores(map(facts.topology, cpus[:granted])),
        confined=len(cpus) <= granted,
        flags=tuple(facts.cpu_flags()),
        address=address,
        interface=next((name for name, addresses in facts.interfaces().items() if address in addresses), "lo"),
        gpus=tuple(-1 if gpu.get("numa") is None else int(str(gpu["numa"])) for gpu in facts.gpus()),
    )
