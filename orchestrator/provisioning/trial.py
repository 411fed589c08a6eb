"""What decides how the trial of fabrics ends: where it changes, the fabrics are tried anew."""

from __future__ import annotations

from modulefinder import ModuleFinder
from pathlib import Path

from orchestrator.files import short_digest


def version(share: Path) -> str:
    """`share` holds train/ and playbooks/."""
    return short_digest(sources(share), share)


def sources(share: Path) -> list[Path]:
    """The trial's programs, all of ours that they import, and the role that starts them."""
    lib = share / "train" / "lib"
    programs = [share / "train" / "node.py", *(lib / "orch_node" / "fabric").glob("*.py")]
    finder = ModuleFinder([str(lib)])
    for program in programs:
        finder.run_script(str(program))
    files = [getattr(module, "__file__", None) for module in finder.modules.values()]
    role = share / "playbooks" / "roles" / "fabric"
    return sorted({*programs, *(Path(file) for file in files if file), *role.glob("*/*.yml")})
