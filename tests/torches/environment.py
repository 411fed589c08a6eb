"""An environment on this machine whose Python has a torch and the bindings built for it."""

from __future__ import annotations

from pathlib import Path

from tests.bindings.conftest import clean_environment
from tests.torches.debian import PROGRAMS, result, said
from tests.torches.suite import Program


class Environment:
    origin = "PyPI"

    def __init__(self, python: Path) -> None:
        self.bin = python.parent

    def run(self, program: Program) -> str:
        """As Debian.run."""
        names = clean_environment({"PYTHONWARNINGS": "ignore"})
        path = f"PATH={self.bin}:{names['PATH']}"
        given = [f"{name}={names[name]}" for name in ("MASTER_ADDR", "MASTER_PORT", "OMP_NUM_THREADS")]
        asked = ["env", path, *given, *program.command(str(self.bin / "mpiexec.hydra"), str(PROGRAMS))]
        return program.judged(*result(asked))

    def python(self, code: str) -> str:
        return said(str(self.bin / "python"), "-c", code).strip()
