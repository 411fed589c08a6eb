"""One rank that torchrun starts in a pod: `python pod_rank.py POD_JSON -- SCRIPT [ARGS...]`.

Which rank this is, and of how many, only torchrun knows (and after a restart it may be others), so
the layout that rank.py reads is made here, for this rank alone.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

import facts
from pod_mpi import node_name, rank_variables

HERE = Path(__file__).resolve().parent


def main(argv: list[str]) -> None:
    config = json.loads(Path(argv[0]).read_text())
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    folder = Path(tempfile.mkdtemp(prefix=f"orch-rank-{rank}-"))
    place = place_of(config, rank, sorted(os.sched_getaffinity(0)))
    host = os.uname().nodename
    layout = {
        "schema": 1,
        "world_size": size,
        "backend": config["backend"],
        "backend_module": config["backend_module"],
        "timeout_seconds": config["timeout_seconds"],
        "nodes": [{"name": place["node"], "host": host, "interface": None, "env": {}}],
        "ranks": [place if one == rank else None for one in range(size)],
    }
    (folder / "layout.json").write_text(json.dumps(layout))
    (folder / "env.json").write_text(json.dumps(environment(config)))
    (folder / "ranks").symlink_to(Path(config["run_dir"]) / "ranks")
    program = [sys.executable, str(HERE / "rank.py"), "--run", str(folder)]
    os.execv(sys.executable, [*program, *argv[1:]])


def place_of(config: dict[str, Any], rank: int, allowed: list[int]) -> dict[str, Any]:
    """This rank's share of the pod's CPUs, where they are its own: a pod that merely has a quota
    sees all CPUs of its node, and is not pinned."""
    local, local_size = int(os.environ["LOCAL_RANK"]), int(os.environ["LOCAL_WORLD_SIZE"])
    threads = config["threads"]
    own = len(allowed) == config["cpus"]
    return {
        "rank": rank,
        "node": node_name(os.uname().nodename),
        "local_rank": local,
        "local_world_size": local_size,
        "cpus": allowed[local * threads : (local + 1) * threads] if own else [],
        "threads": threads,
        "env": {**local_numbers(config, local, local_size), **met_by_torchrun()},
    }


def local_numbers(config: dict[str, Any], local: int, local_size: int) -> dict[str, str]:
    """Where no hydra tells oneCCL which ranks share a pod."""
    if config["env"].get("CCL_PROCESS_LAUNCHER") != "none":
        return {}
    return {"CCL_LOCAL_RANK": str(local), "CCL_LOCAL_SIZE": str(local_size)}


def met_by_torchrun() -> dict[str, str]:
    """The ranks are torchrun's own here, also after its restarts, and so is their store."""
    names = ("MASTER_PORT", "TORCHELASTIC_USE_AGENT_STORE")
    return {name: os.environ[name] for name in names if name in os.environ}


def environment(config: dict[str, Any]) -> dict[str, str]:
    meeting = {name: os.environ[name] for name in ("MASTER_ADDR", "MASTER_PORT")}
    return {**rank_variables(config, facts.libraries(Path(sys.prefix))), **meeting}


if __name__ == "__main__":
    main(sys.argv[1:])
