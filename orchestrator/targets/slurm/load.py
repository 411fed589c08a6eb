"""SBATCH_*, orch-slurm.toml and --slurm KEY=VALUE -> SlurmSettings: each wins over those before."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path

from pydantic import Field

from orchestrator.errors import RequestError
from orchestrator.load.files import StrictModel, read_toml
from orchestrator.targets.slurm.settings import FLAGS, SlurmSettings

FILE = Path("orch-slurm.toml")
OWN = ("root", "python", "login", "runs", "pmi")
# sbatch(1), INPUT ENVIRONMENT VARIABLES: those whose option has another name.
VARIABLES = {"SBATCH_TIMELIMIT": "time", "SBATCH_MEM_PER_NODE": "mem"}
NOT_OPTIONS = ("SBATCH_EXPORT", "SBATCH_DEBUG", "SBATCH_WAIT", "SBATCH_OUTPUT", "SBATCH_ERROR",
               "SBATCH_JOB_NAME", "SBATCH_OPEN_MODE", "SBATCH_ARRAY_INX")  # fmt: skip


class SlurmFile(StrictModel):
    """orch-slurm.toml; the fields mean what SlurmSettings says."""

    root: str | None = None
    python: str | None = None
    login: str | None = None
    runs: str | None = None
    pmi: str | None = None
    sbatch: dict[str, str | int | bool] = Field(default_factory=dict)


def slurm_settings(
    path: Path | None, pairs: Iterable[str], environ: Mapping[str, str] = os.environ
) -> SlurmSettings:
    """Raises RequestError."""
    found = SlurmSettings()
    for name, value in sorted(environ.items()):
        if name.startswith("SBATCH_") and name not in NOT_OPTIONS:
            option = VARIABLES.get(name) or name.removeprefix("SBATCH_").lower().replace("_", "-")
            found = with_option(found, option, value, name)
    source = path or (FILE if FILE.exists() else None)
    if source is not None:
        found = with_file(found, source)
    for pair in pairs:
        name, equals, text = pair.partition("=")
        if name in OWN:
            found = with_own(found, {name: text})
        elif equals or name in FLAGS:
            found = with_option(found, name, text, "asked for")
        else:
            raise RequestError(f"--slurm {pair}: expected KEY=VALUE.", hint="--slurm time=2:00:00")
    return found


def with_file(found: SlurmSettings, source: Path) -> SlurmSettings:
    values = read_toml(source, SlurmFile)
    own = {name: getattr(values, name) for name in OWN if getattr(values, name) is not None}
    found = with_own(found, own)
    for name, value in values.sbatch.items():
        if value is not False:
            text = "" if value is True else str(value)
            found = with_option(found, name, text, str(source))
    return found


def with_option(found: SlurmSettings, name: str, value: str, why: str) -> SlurmSettings:
    """`exclusive=yes` is as good as `exclusive`."""
    name = name.replace("_", "-")
    value = "" if name in FLAGS and value in ("yes", "true", "1") else value
    return replace(found, sbatch={**found.sbatch, name: value}, why={**found.why, name: why})


def with_own(found: SlurmSettings, own: dict[str, str]) -> SlurmSettings:
    """An empty text takes back what was said before."""
    return replace(
        found,
        root=own.get("root", found.root) or None,
        python=own.get("python", found.python) or None,
        login=own.get("login", found.login) or None,
        runs=own.get("runs", found.runs) or None,
        pmi=own.get("pmi", found.pmi),
    )
