"""Where a run comes from: versions of its scripts and packages, seeds, its exact command."""

from __future__ import annotations

import hashlib
import subprocess
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from orch_node.protocol import values

from orchestrator.model.command import Command
from orchestrator.planning.plan import Plan, StartRun

GIT_SECONDS = 10
LISTED = 20
WHERE = "plan.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class Git:
    """The checkout that a script lies in; `changed` since the commit, in the script's folder."""

    commit: str
    dirty: bool
    changed: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Script:
    path: str
    sha256: str
    git: Git | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Provenance:
    """What plan.json holds besides the record, for whoever asks later what it was that ran.

    `script`: the plan as a shell script. All empty where an earlier version recorded less, or
    another controller has started the run.
    """

    script: str = ""
    stack: str = ""
    fingerprints: dict[str, str] = field(default_factory=dict)
    settings: dict[str, Any] = field(default_factory=dict)
    script_args: tuple[str, ...] = ()
    seeds: dict[str, Any] = field(default_factory=dict)
    scripts: Script | None = None
    command: Command | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedCommand:
    argv: tuple[str, ...]
    env: dict[str, str]


def provenance(plan: Plan) -> Provenance:
    start = next((step for step in plan.steps if isinstance(step, StartRun)), None)
    return Provenance(
        script=plan.describe(),
        stack=plan.origin.stack,
        fingerprints=dict(plan.origin.fingerprints),
        settings=dict(plan.origin.settings),
        script_args=plan.origin.script_args,
        seeds=seeds(plan),
        scripts=script_of(Path(plan.origin.script)) if plan.origin.script else None,
        command=start.command if start else Command(argv=()),  # else the manifest has it
    )


def render(origin: Provenance) -> dict[str, Any]:
    """As JSON has it."""
    found: dict[str, Any] = values.record(origin)
    if origin.command is not None:
        found["command"]["env"] = dict(origin.command.env)
    return found


def parse(value: object) -> Provenance:
    """What `render` made, now or in an earlier version. Raises ProtocolError."""
    known = values.check_object(value, WHERE)
    names = [one.name for one in fields(Provenance) if one.name != "command"]
    found = values.read(Provenance, {name: known[name] for name in names if known.get(name) is not None}, WHERE)
    return replace(found, command=recorded_command(known.get("command")))


def recorded_command(value: Any) -> Command | None:
    """Raises ProtocolError."""
    if value is None:
        return None
    found = values.read(RecordedCommand, value, f"{WHERE}: command")
    return Command(argv=found.argv, env=tuple(found.env.items()))


def seeds(plan: Plan) -> dict[str, Any]:
    """Settings and arguments that are named seed; what torch really had is in the first_step
    events."""
    found = {name: value for name, value in plan.origin.settings.items() if "seed" in name}
    words = iter(plan.origin.script_args)
    for word in words:
        name, equals, value = word.lstrip("-").partition("=")
        if word.startswith("--") and "seed" in name:
            found[name] = value if equals else next(words, "")
    return found


def script_of(path: Path) -> Script:
    """The script's own hash, and the state of the git checkout that it lies in."""
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    return Script(path=str(path), sha256=digest, git=git_state(path))


def git_state(script: Path) -> Git | None:
    """Commit, and what has changed since in the script's folder; None outside of git."""
    commit = git(script.parent, "rev-parse", "HEAD")
    status = git(script.parent, "status", "--porcelain", "-z", "--no-renames", "--", ".")
    if commit is None or status is None:
        return None
    changed = [line[3:] for line in status.split("\0") if line and not line.startswith("??")]
    if git(script.parent, "ls-files", "--error-unmatch", "--", script.name) is None:
        changed.append(script.name)  # other files that git does not know are none of the run's
    return Git(commit=commit.strip(), dirty=bool(changed), changed=tuple(changed[:LISTED]))


def git(folder: Path, *arguments: str) -> str | None:
    """What git says, or None: no git, no checkout, or one that is not ours to read."""
    command = ["git", "-C", str(folder), *arguments]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=GIT_SECONDS)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout if done.returncode == 0 else None
