"""The script that sbatch takes: options, the run's settings, and the program that does the rest."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator

import jinja2
from orch_node.protocol import values
from orch_node.protocol.slurm import CONFIG, JobConfig

from orchestrator.model.printable import one_line
from orchestrator.planning.plan import Plan, heredoc
from orchestrator.targets.slurm.location import location_of
from orchestrator.targets.slurm.settings import SlurmSettings

ROOM_SECONDS = 150  # before the end: 120 are the ranks' own, and Slurm may be 60 s late or early
TEMPLATES = jinja2.PackageLoader("orchestrator", "templates/slurm")


def render(plan: Plan, config: JobConfig, slurm: SlurmSettings) -> str:
    environment = jinja2.Environment(  # nosec B701: a shell script, whose values are quoted
        loader=TEMPLATES,
        undefined=jinja2.StrictUndefined,
        keep_trailing_newline=True,
        trim_blocks=True,
    )
    run = plan.run
    settings = json.dumps(values.record(config), indent=1) + "\n"
    return environment.get_template("job.sh.j2").render(
        options=list(options(plan, config, slurm)),
        decisions=[one_line(one.describe()) for one in run.decisions],
        run_dir=shlex.quote(run.run_dir),
        settings=heredoc(settings),
        settings_file=shlex.quote(f"{run.run_dir}/{CONFIG}"),
        command=shlex.join((run.python, f"{run.train}/node.py", "slurm", run.run_dir)),
    )


def options(plan: Plan, config: JobConfig, slurm: SlurmSettings) -> Iterator[str]:
    """sbatch's own, one a line."""
    yield f"--job-name={shlex.quote(location_of(plan.run).name)}"
    yield f"--nodes={config.nodes + config.spare_nodes}"
    yield f"--ntasks-per-node={config.ppn}"
    yield "--open-mode=append"
    if any(one.startswith("--max-restarts") for one in config.options):
        yield "--no-kill"
    if "no-requeue" not in slurm.sbatch and "requeue" not in slurm.sbatch:
        yield "--requeue"
    if "signal" not in slurm.sbatch:  # to the supervisor, such that a checkpoint can be written
        yield f"--signal=B:TERM@{ROOM_SECONDS}"
    for name, value in slurm.sbatch.items():
        yield f"--{name}={shlex.quote(value)}" if value else f"--{name}"
