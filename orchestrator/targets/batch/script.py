"""Write the script of a job: its options, the run's settings, and the command that does the work."""

from __future__ import annotations

import json
import shlex
from collections.abc import Sequence
from itertools import count

import jinja2
from orch_node.protocol import values
from orch_node.protocol.batch import CONFIG, JobConfig

from orchestrator.model.printable import one_line
from orchestrator.planning.plan import Plan
from orchestrator.targets.batch.settings import BatchSettings
from orchestrator.targets.batch.system import TEMPLATE

HEREDOC_DELIMITER = "ORCH_END_OF_FILE"
TEMPLATES = jinja2.PackageLoader("orchestrator", "templates/batch")


def render(
    runs: Sequence[tuple[str, Plan, JobConfig]],
    settings: BatchSettings,
    options: Sequence[str],
    *,
    is_array: bool = False,
) -> str:
    """Return the script of a run, or of the runs of an array.

    Args:
        runs: for each run, the settings that distinguish it in an array, its plan, and the settings of orch's program.
        settings: the settings for the batch system.
        options: the options of the job.
        is_array: whether each run is a task of an array.
    """
    environment = jinja2.Environment(  # noqa: S701  a shell script, whose values are quoted
        loader=TEMPLATES, undefined=jinja2.StrictUndefined, keep_trailing_newline=True, trim_blocks=True
    )
    system, first = settings.system, runs[0][1].run
    template = {**TEMPLATE, **system.template}
    of_one_run = ("run", "array", "resume") if is_array else ()
    decisions = [decision for decision in first.decisions if decision.topic not in of_one_run]
    return environment.get_template("job.sh.j2").render(
        system=system,
        template=template,
        options=options,
        decisions=[one_line(decision.describe()) for decision in decisions],
        is_array=is_array,
        runs=[{"label": one_line(label), **file_values(plan, config)} for label, plan, config in runs],
        run_dir='"$run_dir"' if is_array else shlex.quote(first.run_dir),
        output=template["array_output" if is_array else "output"],
        setup=[(command, shlex.quote(f"error: {system.flag} setup={command} failed")) for command in settings.setup],
        program=shlex.join((first.python, f"{first.train}/node.py", "job")),
    )


def file_values(plan: Plan, config: JobConfig) -> dict[str, str]:
    """Return the values of a run that the script writes to files, quoted for the shell."""
    text = json.dumps(values.record(config), indent=1) + "\n"
    return {
        "run_dir": shlex.quote(plan.run.run_dir),
        "settings": heredoc(text),
        "settings_file": shlex.quote(f"{plan.run.run_dir}/{CONFIG}"),
    }


def heredoc(content: str) -> str:
    """Return a file's content as a here-document whose delimiter is not a line of it."""
    lines = set(content.split("\n"))
    delimiters = (f"{HEREDOC_DELIMITER}_{number}" if number else HEREDOC_DELIMITER for number in count())
    delimiter = next(word for word in delimiters if word not in lines)
    return f"<<'{delimiter}'\n{content}{delimiter}"
