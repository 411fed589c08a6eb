"""Check what `make setup` installs with the real pip."""

from __future__ import annotations

import os
import subprocess
import sysconfig
import venv
from pathlib import Path

from tests.support.wheels import index_variables, make_wheel


def test_packages_of_the_user_are_added_and_others_stay(tmp_path: Path) -> None:
    make_wheel(tmp_path / "index", "orch_test_greeter", "1.0", requires=["packaging"], module="VERSION = '1.0'")
    make_wheel(tmp_path / "index", "packaging", "99.0")
    program, environment = make_environment(tmp_path)
    code = (
        "from orchestrator import load; from orchestrator.operations.setup import install_packages\n"
        "from orchestrator.model.packages import Requirements\n"
        "requirements = Requirements(source='needs.txt', lines=('orch-test-greeter',))\n"
        "install_packages(requirements, load.stack('current'), print)\n"
        "import orch_test_greeter, packaging; print(orch_test_greeter.__file__, packaging.__version__)\n"
    )
    done = subprocess.run([program, "-c", code], env=environment, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    notice, result = done.stdout.splitlines()
    assert notice == "installing the packages of needs.txt"
    assert result.startswith(str(tmp_path / "venv"))
    assert not result.endswith("99.0"), "a package of the environment was replaced"


def make_environment(folder: Path) -> tuple[str, dict[str, str]]:
    """Make an environment that also finds the packages of this one and orch, and variables with an empty cache."""
    venv.create(folder / "venv")
    (site,) = (folder / "venv/lib").glob("python*/site-packages")
    # addsitedir also reads the .pth files there, such as that of an editable installation.
    (site / "tests.pth").write_text(f"import site; site.addsitedir({sysconfig.get_path('purelib')!r})\n")
    variables = {**index_variables(folder / "index"), "XDG_CACHE_HOME": str(folder / "cache")}
    return str(folder / "venv/bin/python"), {**os.environ, **variables}
