"""Run programs in an environment of this machine that has a torch and bindings built for it."""

from __future__ import annotations

from pathlib import Path

from tests.bindings.conftest import clean_environment
from tests.torches.debian import PROGRAMS, output_of, run_command
from tests.torches.suite import Program


class Environment:
    """An environment with a torch of PyPI and bindings built for it."""

    origin = "PyPI"

    def __init__(self, python: Path) -> None:
        self.bin = python.parent

    def run(self, program: Program) -> str:
        """Run a program and return its output, like Debian.run()."""
        variables = clean_environment({"PYTHONWARNINGS": "ignore"})
        path = f"PATH={self.bin}:{variables['PATH']}"
        assignments = [f"{name}={variables[name]}" for name in ("MASTER_ADDR", "MASTER_PORT", "OMP_NUM_THREADS")]
        command = ["env", path, *assignments, *program.command(str(self.bin / "mpiexec.hydra"), str(PROGRAMS))]
        return program.check_output(*run_command(command))

    def python(self, code: str) -> str:
        return output_of(str(self.bin / "python"), "-c", code).strip()
