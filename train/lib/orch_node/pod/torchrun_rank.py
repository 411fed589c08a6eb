"""Start a rank for torchrun in a pod: `node.py pod-rank POD_JSON -- SCRIPT [ARGS...]`.

Only torchrun knows the number of the rank and of all ranks, which may change with a restart. The
layout for the wrapper is therefore written here, with this rank only.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from pathlib import Path

from orch_node import atomic_write, program
from orch_node.protocol import files, pod
from orch_node.protocol import layout as layouts
from orch_node.protocol.cores import reported_cores, split
from orch_node.protocol.environment import local_rank_variables, rank_variables
from orch_node.protocol.layout import NodeEntry, RankEntry, RunLayout
from orch_node.protocol.pod import PodConfig, node_name
from orch_node.standalone import facts


def main(argv: list[str]) -> None:
    """Write the layout of this rank and replace this process by the rank's wrapper."""
    config = pod.parse(Path(argv[0]).read_text())
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    folder = Path(tempfile.mkdtemp(prefix=f"orch-rank-{rank}-"))
    host = os.uname().nodename
    node = NodeEntry(node_name(host), host.partition(".")[0], repair="`orch image build`", recorded=False)
    layout = RunLayout(
        world_size=size,
        planned_world_size=config.pods * config.ppn,
        backend=config.backend,
        backend_module=config.backend_module,
        timeout_seconds=config.timeout_seconds,
        precision=config.precision,
        working_directory=config.project.working_directory if config.project else "",
        nodes=(node,),
        ranks=(entry_of(config, host, rank, sorted(os.sched_getaffinity(0))),),
    )
    atomic_write.write(folder / files.LAYOUT, layouts.render(layout))
    atomic_write.write(folder / files.ENVIRONMENT, json.dumps(environment(config)))
    (folder / files.RANKS).symlink_to(Path(config.run_dir) / files.RANKS)
    os.execv(sys.executable, program.command("rank", "--run", str(folder), *argv[1:]))


def entry_of(config: PodConfig, host: str, rank: int, allowed: list[int]) -> RankEntry:
    """Return where this rank runs, pinned to its share of the cores if the pod has exclusive CPUs.

    A pod that only has a CPU quota sees all CPUs of its node and is not pinned. Kubernetes counts hardware threads as
    CPUs; a rank that is pinned has one thread for each of its cores.
    """
    local, local_size = int(os.environ["LOCAL_RANK"]), int(os.environ["LOCAL_WORLD_SIZE"])
    cores = reported_cores(map(facts.topology, allowed))
    exclusive = len(allowed) == config.cpus and local_size <= len(cores)
    own_cores = split(cores, local_size)[local] if exclusive else ()
    return RankEntry(
        rank=rank,
        node=node_name(host),
        local_rank=local,
        local_world_size=local_size,
        cpus=tuple(core.cpus[0] for core in own_cores),
        threads=len(own_cores) or config.threads,
        env={**local_rank_variables(config.env, local, local_size), **met_by_torchrun()},
    )


def environment(config: PodConfig) -> dict[str, str]:
    variables = rank_variables(config.env, config.preload, facts.libraries(Path(sys.prefix)))
    variables |= {name: os.environ[name] for name in ("MASTER_ADDR", "MASTER_PORT")}
    return {**variables, "ORCH_ATTEMPT": str(config.attempt)}


def met_by_torchrun() -> dict[str, str]:
    """Return the variables that only torchrun knows.

    These are its store, which the ranks share even after its restarts, and the numbers of the pods,
    because this layout has only one of them.
    """
    names = ("MASTER_PORT", "TORCHELASTIC_USE_AGENT_STORE", "TORCHELASTIC_RUN_ID", "GROUP_RANK", "GROUP_WORLD_SIZE")
    sources = {**dict(zip(names, names)), "NODE_RANK": "GROUP_RANK"}
    return {name: os.environ[source] for name, source in sources.items() if source in os.environ}
