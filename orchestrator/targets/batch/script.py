"""Write the script for sbatch: its options, the run's settings, and the command that does the work."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator, Sequence

import jinja2
from orch_node.protocol import values
from orch_node.protocol.slurm import CONFIG, JobConfig

from orchestrator.model.printable import one_line
from orchestrator.planning.plan import Plan, heredoc
from orchestrator.targets.batch.location import location_of
from orchestrator.targets.batch.settings import SlurmSettings

# The ranks get 120 s before the time limit for a checkpoint. Slurm may send the signal up to 60 s early or late.
CHECKPOINT_SECONDS = 150
TEMPLATES = jinja2.PackageLoader("orchestrator", "templates/slurm")


def render(plan: Plan, config: JobConfig, slurm: SlurmSettings) -> str:
    """Return the script of a run."""
    run = plan.run
    name = location_of(run).name
    return load_template("job.sh.j2").render(
        options=list(options(name, config, slurm)),
        decisions=[one_line(decision.describe()) for decision in run.decisions],
        command=shlex.join((run.python, f"{run.train}/node.py", "slurm", run.run_dir)),
        setup=setup_commands(slurm),
        **file_values(plan, config),
    )


def render_array(
    name: str,
    labels: Sequence[str],
    runs: Sequence[tuple[Plan, JobConfig]],
    slurm: SlurmSettings,
    limit: int | None = None,
) -> str:
    """Return the script of an array of runs.

    Args:
        name: the name of the job.
        labels: the settings that distinguish each run.
        runs: the plan and the settings of each run.
        slurm: the settings for Slurm.
        limit: the number of runs that may be active at once; None for no limit.
    """
    (first, config), *_ = runs
    decisions = [decision for decision in first.run.decisions if decision.topic not in ("run", "array", "resume")]
    tasks = f"0-{len(runs) - 1}" + (f"%{limit}" if limit else "")
    return load_template("array.sh.j2").render(
        options=[*options(name, config, slurm), f"--array={tasks}"],
        decisions=[one_line(decision.describe()) for decision in decisions],
        members=[{"label": one_line(label), **file_values(*run)} for label, run in zip(labels, runs, strict=True)],
        program=shlex.join((first.run.python, f"{first.run.train}/node.py", "slurm")),
        setup=setup_commands(slurm),
    )


def setup_commands(slurm: SlurmSettings) -> list[tuple[str, str]]:
    """Return each setup command with the message that is printed if it fails."""
    return [(command, shlex.quote(f"error: --slurm setup={command} failed")) for command in slurm.setup]


def file_values(plan: Plan, config: JobConfig) -> dict[str, str]:
    """Return the values of a run that the script writes to files, quoted for the shell."""
    settings = json.dumps(values.record(config), indent=1) + "\n"
    return {
        "run_dir": shlex.quote(plan.run.run_dir),
        "settings": heredoc(settings),
        "settings_file": shlex.quote(f"{plan.run.run_dir}/{CONFIG}"),
    }


def load_template(name: str) -> jinja2.Template:
    """Return a template of a script."""
    environment = jinja2.Environment(  # nosec B701: a shell script, whose values are quoted
        loader=TEMPLATES, undefined=jinja2.StrictUndefined, keep_trailing_newline=True, trim_blocks=True
    )
    return environment.get_template(name)


def time_seconds(text: str) -> int | None:
    """Return the seconds of a time limit as sbatch reads it, or None if it is invalid.

    The formats are MM, MM:SS, HH:MM:SS, D-HH, D-HH:MM and D-HH:MM:SS.
    """
    days, dash, clock = text.rpartition("-")
    fields = [days or "0", *clock.split(":")]
    if not all(field.isascii() and field.isdigit() and len(field) < 7 for field in fields):
        return None
    numbers = [int(field) for field in clock.split(":")]
    units = (3600, 60, 1) if dash or len(numbers) == 3 else (60, 1)
    if len(numbers) > len(units):
        return None
    seconds = sum(number * unit for number, unit in zip(numbers, units, strict=False))
    return 86_400 * int(days or "0") + seconds


def options(name: str, config: JobConfig, slurm: SlurmSettings) -> Iterator[str]:
    """Yield the options of sbatch, one per line of the script."""
    yield f"--job-name={shlex.quote(name)}"
    yield f"--nodes={config.nodes + config.spare_nodes}"
    yield f"--ntasks-per-node={config.ppn}"
    if slurm.held:
        return
    yield "--open-mode=append"
    if any(option.startswith("--max-restarts") for option in config.options):
        yield "--no-kill"
    if "no-requeue" not in slurm.sbatch and "requeue" not in slurm.sbatch:
        yield "--requeue"
    if "signal" not in slurm.sbatch:  # At this signal the supervisor lets the ranks write a checkpoint.
        yield f"--signal=B:TERM@{CHECKPOINT_SECONDS}"
    for name, value in slurm.sbatch.items():
        yield f"--{name}={shlex.quote(value)}" if value else f"--{name}"
