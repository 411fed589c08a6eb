"""Where a run comes from: versions of its scripts and packages, seeds, its exact command."""

from __future__ import annotations

import hashlib
import subprocess
from pathlib import Path
from typing import Any

from orchestrator.plan import Plan, StartRun

GIT_SECONDS = 10
LISTED = 20


def provenance(plan: Plan) -> dict[str, Any]:
    """What plan.json holds besides the decisions, for whoever asks later what it was that ran."""
    start = next(step for step in plan.steps if isinstance(step, StartRun))
    return {
        "stack": plan.stack,
        "fingerprints": dict(plan.fingerprints),
        "settings": dict(plan.settings),
        "script_args": list(plan.script_args),
        "seeds": seeds(plan),
        "scripts": scripts(Path(plan.source)),
        "command": {"argv": list(start.command.argv), "env": dict(start.command.env)},
    }


def seeds(plan: Plan) -> dict[str, Any]:
    """Settings and arguments that are named seed; what torch really had is in the first_step
    events."""
    found = {name: value for name, value in plan.settings.items() if "seed" in name}
    words = iter(plan.script_args)
    for word in words:
        name, equals, value = word.lstrip("-").partition("=")
        if word.startswith("--") and "seed" in name:
            found[name] = value if equals else next(words, "")
    return found


def scripts(script: Path) -> dict[str, Any]:
    """The script's own hash, and the state of the git checkout that it lies in."""
    digest = hashlib.sha256(script.read_bytes()).hexdigest()
    return {"path": str(script), "sha256": digest, "git": git_state(script)}


def git_state(script: Path) -> dict[str, Any] | None:
    """Commit, and what has changed since in the script's folder; None outside of git."""
    commit = git(script.parent, "rev-parse", "HEAD")
    status = git(script.parent, "status", "--porcelain", "-z", "--no-renames", "--", ".")
    if commit is None or status is None:
        return None
    changed = [line[3:] for line in status.split("\0") if line and not line.startswith("??")]
    if git(script.parent, "ls-files", "--error-unmatch", "--", script.name) is None:
        changed.append(script.name)  # other files that git does not know are none of the run's
    return {"commit": commit.strip(), "dirty": bool(changed), "changed": changed[:LISTED]}


def git(folder: Path, *arguments: str) -> str | None:
    """What git says, or None: no git, no checkout, or one that is not ours to read."""
    command = ["git", "-C", str(folder), *arguments]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=GIT_SECONDS)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout if done.returncode == 0 else None
