"""What the batch script of a job is: `node.py slurm RUN_DIR`, on the first node of the allocation.

It starts the agents by one step of Slurm, lays the ranks out on the cores that the job has been
given, and is the supervisor of the run, as on every target. Exit code: that of the run.
"""

from __future__ import annotations

import functools
import json
import os
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

from orch_node import whole_files
from orch_node.protocol import files, outcome, slurm, values
from orch_node.protocol.outcome import EX_TEMPFAIL, FAILED, Outcome
from orch_node.protocol.slurm import Hello, JobConfig, Submitted
from orch_node.reach import BY_STEP
from orch_node.slurm import lay
from orch_node.slurm.channels import JobAgents
from orch_node.slurm.gather import GatherError, Gathering
from orch_node.slurm.local_stack import FillError, fill_nodes
from orch_node.slurm.words import STEP, VARIABLES
from orch_node.standalone import facts
from orch_node.supervisor import supervisor

# Of an earlier start of this job: it was put back into the queue.
OF_BEFORE = (files.OUTCOME, files.SUPERVISOR)


ENDED_SECONDS = 60.0  # until Slurm has ended a job that it puts back


def main(argv: list[str]) -> int:
    if len(argv) != 1:
        print("usage: node.py slurm RUN_DIR", file=sys.stderr)
        return 2
    run_dir = Path(argv[0])
    config = slurm.parse((run_dir / slurm.CONFIG).read_text())
    began = time.time()
    clear_outcome(run_dir)
    try:
        nodes = node_names()
        if config.local:
            fill_nodes(run_dir, nodes)
        gathering = Gathering(run_dir, nodes)
    except (FillError, GatherError, OSError) as error:
        return fail(run_dir, str(error), began)
    try:
        gathering.all()
        return supervise(run_dir, config, gathering)
    except (GatherError, lay.LayError, OSError) as error:
        return fail(run_dir, str(error), began)
    finally:
        gathering.end()


def clear_outcome(run_dir: Path) -> None:
    for name in OF_BEFORE:
        (run_dir / name).unlink(missing_ok=True)
    (run_dir / files.RANKS).mkdir(mode=0o700, exist_ok=True)
    (run_dir / "claims").mkdir(mode=0o700, exist_ok=True)


def node_names() -> list[str]:
    """The nodes of the job, in Slurm's order. Raises OSError."""
    listed = subprocess.run(
        ["scontrol", "show", "hostnames", os.environ["SLURM_JOB_NODELIST"]],
        capture_output=True, text=True, stdin=subprocess.DEVNULL,
    )  # fmt: skip
    if listed.returncode != 0 or not listed.stdout.split():
        raise OSError(f"scontrol does not tell the nodes of the job: {listed.stderr.strip()}")
    return listed.stdout.split()


def supervise(run_dir: Path, config: JobConfig, gathering: Gathering) -> int:
    hellos = [gathering.hellos[node] for node in gathering.nodes]
    lay.check(config, hellos)
    stack = Path(config.local.folder if config.local else sys.prefix)
    for name, text in lay.run_files(config, hellos, facts.libraries(stack)).items():
        whole_files.write(run_dir / name, text)
    note(run_dir, hellos)
    alone = shlex.join(["srun", *STEP, "--mpi=none", "--nodes=1", "--ntasks=1"])
    os.environ.update({**VARIABLES, **config.launcher_env, **interface(hellos), BY_STEP: alone})
    words = [str(run_dir), *config.options, "--", *lay.launcher(config, hellos[0].address)]
    open_agents = functools.partial(JobAgents, connections=gathering.connections)
    code = supervisor.Supervisor(run_dir, supervisor.parse(words), open_agents).run()
    if code == EX_TEMPFAIL and config.requeue:
        requeue(run_dir)
    return code


def requeue(run_dir: Path) -> None:
    """Put the job back into the queue, which ends this one: it goes on from the checkpoint. One
    that has written none would make room for ever."""
    path = run_dir / files.OUTCOME
    told = outcome.parse(path.read_bytes())
    if not (told.problem or "").startswith("checkpoint"):
        print(f"no requeue: {told.problem}", file=sys.stderr, flush=True)
        return
    aside = run_dir / f"outcome-{os.environ.get('SLURM_RESTART_COUNT', '0')}.json"
    path.rename(aside)
    (run_dir / files.SUPERVISOR).unlink(missing_ok=True)
    command = ["scontrol", "requeue", os.environ["SLURM_JOB_ID"]]
    done = subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL)
    # Below 0 Slurm has ended it by a signal, with all of the job and before this process: it obeys.
    if done.returncode > 0:
        aside.rename(path)
        print(f"no requeue: {done.stderr.strip()}", file=sys.stderr, flush=True)
        return
    # An exit of its own would be a failure for as long as Slurm takes to put the job back.
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    time.sleep(ENDED_SECONDS)


def interface(hellos: list[Hello]) -> dict[str, str]:
    """By which hydra's proxies reach node0."""
    if len(hellos) == 1:
        return {}
    return {"I_MPI_HYDRA_IFACE": hellos[0].interface, "HYDRA_IFACE": hellos[0].interface}


def note(run_dir: Path, hellos: list[Hello]) -> None:
    """Which job it is, and what was found of its nodes."""
    loose = [one.node for one in hellos if not one.confined]
    words = f"Slurm holds no job to its cores on {', '.join(loose)}: the first ones are taken"
    restarts = int(os.environ.get("SLURM_RESTART_COUNT", "0"))
    told = Submitted(os.environ["SLURM_JOB_ID"], restarts, (words,) if loose else ())
    whole_files.write(run_dir / slurm.JOB, json.dumps(values.record(told)) + "\n")


def fail(run_dir: Path, problem: str, began: float) -> int:
    """The run ends before it has begun, with the reason."""
    print(f"error: {problem}", file=sys.stderr, flush=True)
    ended = Outcome(state=FAILED, problem=problem, started=began, ended=time.time())
    whole_files.write(run_dir / files.OUTCOME, outcome.render(ended))
    return 1
