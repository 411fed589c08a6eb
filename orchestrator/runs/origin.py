"""The origin of a run: the versions of its scripts and packages, its settings and its command."""

from __future__ import annotations

import subprocess
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from orchestrator.errors import RequestError
from orchestrator.files import git, sha256
from orchestrator.model.packages import Packages
from orchestrator.model.printable import Command, mask, masked
from orchestrator.model.project import Project
from orchestrator.planning import recorded_request
from orchestrator.planning.plan import Plan, StartRun

GIT_SECONDS = 10
LISTED = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Git:
    """The state of the git checkout that contains a script.

    Attributes:
        commit: the hash of the current commit.
        changed: the files in the script's folder that have changed since then, at most LISTED of them.
    """

    commit: str
    changed: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Script:
    """A script with its hash and the state of its git checkout."""

    path: str
    sha256: str
    git: Git | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """The data in plan.json besides the record, which documents what was run.

    All fields are empty if another controller has started the run.

    Attributes:
        request: the request, as `recorded_request` renders it; empty if it is unknown.
        directory: the folder in which the run was requested.
        script: the plan in full.
        stack: the name of the stack.
        fingerprints: the nodes with each set of packages, by its fingerprint.
        settings: the settings of the recipe.
        script_args: the arguments of the script.
        project: the files that were sent with the script, or None.
        packages: the packages that were added to the stack, or None.
        scripts: the training script.
        command: the command that was started, or None if it is unknown.
    """

    request: dict[str, Any] = field(default_factory=dict)
    directory: str = ""
    script: str = ""
    stack: str = ""
    fingerprints: dict[str, str] = field(default_factory=dict)
    settings: dict[str, Any] = field(default_factory=dict)
    script_args: tuple[str, ...] = ()
    project: Project | None = None
    packages: Packages | None = None
    scripts: Script | None = None
    command: Command | None = None


def origin_of(plan: Plan) -> Origin:
    """Return the origin of a run that is about to start."""
    start = next((step for step in plan.steps if isinstance(step, StartRun)), None)
    secrets, resolved = plan.secrets, plan.resolved
    command = start.command if start else Command(argv=())  # otherwise the manifest contains it
    return Origin(
        request=recorded_request.render(plan.request),
        directory=str(Path.cwd()),
        script=plan.describe(),
        stack=resolved.stack.value.name,
        fingerprints=dict(plan.fingerprints),
        settings={
            name: mask(value, secrets) if isinstance(value, str) else value for name, value in resolved.settings.items()
        },
        script_args=masked(plan.request.script_args),
        project=plan.project,
        packages=resolved.recipe.packages,
        scripts=script_of(Path(resolved.recipe.script_file)) if resolved.recipe.script_file else None,
        command=Command(argv=tuple(mask(word, secrets) for word in command.argv), env=command.env),
    )


def script_of(path: Path) -> Script:
    """Return the script's hash and the state of the git checkout that contains it."""
    return Script(path=str(path), sha256=sha256(path), git=git_state(path))


def git_state(script: Path) -> Git | None:
    """Return the commit and the changes since then in the script's folder, or None if git fails."""
    query = partial(git, script.parent, seconds=GIT_SECONDS)
    try:
        commit = query("rev-parse", "HEAD")
        status = query("status", "--porcelain", "-z", "--no-renames", "--untracked-files=no", "--", ".")
        is_tracked = query("ls-files", "--", script.name)
    except (RequestError, subprocess.TimeoutExpired):
        return None
    changed = [line[3:] for line in status.split("\0") if line]
    changed += [] if is_tracked else [script.name]  # other untracked files do not belong to the run
    return Git(commit=commit.strip(), changed=tuple(changed[:LISTED]))
