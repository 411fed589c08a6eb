"""What `orch train --on k8s` has besides the options of all targets."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar


@dataclass(frozen=True, slots=True, kw_only=True)
class KubeOptions:
    """`k8s`: settings as KEY=VALUE; `k8s_file`: the file with the others;
    `k8s_patch`: a file with changes to the objects; `wait_limit`: seconds until the ranks must have
    started."""

    on: ClassVar[str] = "k8s"

    k8s: tuple[str, ...] = ()
    k8s_file: Path | None = None
    k8s_patch: Path | None = None
    wait_limit: int | None = None
