"""The origin of a run: the versions of its scripts and packages, its settings and its command."""

from __future__ import annotations

import hashlib
import subprocess
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

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
        dirty: whether files in the script's folder have changed since the commit.
        changed: the changed files, at most LISTED of them.
    """

    commit: str
    dirty: bool
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
    return Script(path=str(path), sha256=hashlib.sha256(path.read_bytes()).hexdigest(), git=git_state(path))


def git_state(script: Path) -> Git | None:
    """Return the commit and the changes since then in the script's folder, or None outside a checkout."""
    commit = git(script.parent, "rev-parse", "HEAD")
    status = git(script.parent, "status", "--porcelain", "-z", "--no-renames", "--", ".")
    if commit is None or status is None:
        return None
    changed = [line[3:] for line in status.split("\0") if line and not line.startswith("??")]
    if git(script.parent, "ls-files", "--error-unmatch", "--", script.name) is None:
        changed.append(script.name)  # other untracked files do not belong to the run
    return Git(commit=commit.strip(), dirty=bool(changed), changed=tuple(changed[:LISTED]))


def git(folder: Path, *arguments: str) -> str | None:
    """Return the output of a git command, or None if git, a checkout or the permission to read it is missing."""
    command = ["git", "-C", str(folder), *arguments]
    try:
        process = subprocess.run(command, capture_output=True, text=True, timeout=GIT_SECONDS)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return process.stdout if process.returncode == 0 else None
