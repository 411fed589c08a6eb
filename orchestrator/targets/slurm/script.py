"""The script that sbatch takes: options, the run's settings, and the program that does the rest."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator, Sequence

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
    run = plan.run
    name = location_of(run).name
    return template("job.sh.j2").render(
        options=list(options(name, config, slurm)),
        decisions=[one_line(one.describe()) for one in run.decisions],
        command=shlex.join((run.python, f"{run.train}/node.py", "slurm", run.run_dir)),
        setup=setup_commands(slurm),
        **written(plan, config),
    )


def render_array(
    name: str,
    labels: Sequence[str],
    runs: Sequence[tuple[Plan, JobConfig]],
    slurm: SlurmSettings,
    limit: int | None = None,
) -> str:
    """`name`: of the job; `labels`: what each run has of its own; `limit`: how many go at once."""
    (first, config), *_ = runs
    decisions = [one for one in first.run.decisions if one.topic not in ("run", "array", "resume")]
    tasks = f"0-{len(runs) - 1}" + (f"%{limit}" if limit else "")
    return template("array.sh.j2").render(
        options=[*options(name, config, slurm), f"--array={tasks}"],
        decisions=[one_line(one.describe()) for one in decisions],
        members=[{"label": one_line(label), **written(*one)} for label, one in zip(labels, runs, strict=True)],
        program=shlex.join((first.run.python, f"{first.run.train}/node.py", "slurm")),
        setup=setup_commands(slurm),
    )


def setup_commands(slurm: SlurmSettings) -> list[tuple[str, str]]:
    """Return each command of the setup, and the message that is printed if it fails."""
    return [(one, shlex.quote(f"error: --slurm setup={one} failed")) for one in slurm.setup]


def written(plan: Plan, config: JobConfig) -> dict[str, str]:
    """What the script writes for a run, as the shell reads it."""
    settings = json.dumps(values.record(config), indent=1) + "\n"
    return {
        "run_dir": shlex.quote(plan.run.run_dir),
        "settings": heredoc(settings),
        "settings_file": shlex.quote(f"{plan.run.run_dir}/{CONFIG}"),
    }


def template(name: str) -> jinja2.Template:
    environment = jinja2.Environment(  # nosec B701: a shell script, whose values are quoted
        loader=TEMPLATES, undefined=jinja2.StrictUndefined, keep_trailing_newline=True, trim_blocks=True
    )
    return environment.get_template(name)


def time_seconds(text: str) -> int | None:
    """Return the seconds of a time limit as sbatch reads it, or None if it is not one.

    It reads MM, MM:SS, HH:MM:SS, D-HH, D-HH:MM and D-HH:MM:SS.
    """
    days, dash, rest = text.rpartition("-")
    fields = [days or "0", *rest.split(":")]
    if not all(one.isascii() and one.isdigit() and len(one) < 7 for one in fields):
        return None
    numbers = [int(one) for one in rest.split(":")]
    units = (3600, 60, 1) if dash or len(numbers) == 3 else (60, 1)
    if len(numbers) > len(units):
        return None
    seconds = sum(number * unit for number, unit in zip(numbers, units, strict=False))
    return 86_400 * int(days or "0") + seconds


def options(name: str, config: JobConfig, slurm: SlurmSettings) -> Iterator[str]:
    """sbatch's own, one a line."""
    yield f"--job-name={shlex.quote(name)}"
    yield f"--nodes={config.nodes + config.spare_nodes}"
    yield f"--ntasks-per-node={config.ppn}"
    if slurm.held:
        return
    yield "--open-mode=append"
    if any(one.startswith("--max-restarts") for one in config.options):
        yield "--no-kill"
    if "no-requeue" not in slurm.sbatch and "requeue" not in slurm.sbatch:
        yield "--requeue"
    if "signal" not in slurm.sbatch:  # to the supervisor, such that a checkpoint can be written
        yield f"--signal=B:TERM@{ROOM_SECONDS}"
    for name, value in slurm.sbatch.items():
        yield f"--{name}={shlex.quote(value)}" if value else f"--{name}"
