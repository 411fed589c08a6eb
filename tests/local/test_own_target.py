"""Install the package of docs/how-to/own-targets.md, and train with the target that it adds."""

from __future__ import annotations

import json
import subprocess
import sys
import venv
from pathlib import Path

import pytest

from tests.local.runs import ORCH, Orch, Process, expect_exit, run_in, write_script
from tests.local.workspaces import Workspace
from tests.support.pages import blocks

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs/how-to/own-targets.md"
FILES = ("pyproject.toml", "orch_booking/__init__.py", "orch_booking/target.py")
BROKEN = "import package_that_is_missing\n"


@pytest.fixture(scope="module")
def orch_with_package(two_hosts: Workspace, tmp_path_factory: pytest.TempPathFactory) -> Orch:
    """Return orch in an environment that has the page's package, and one that cannot be imported."""
    folder = tmp_path_factory.mktemp("booking")
    for name, block in zip(FILES, blocks(PAGE), strict=False):
        (folder / "package" / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / "package" / name).write_text(block.text + "\n")
    environment = folder / "venv"
    venv.create(environment, with_pip=False)
    for program in Path(sys.executable).parent.glob("ansible*"):
        (environment / "bin" / program.name).symlink_to(program)
    (site,) = environment.glob("lib/*/site-packages")
    (site / "orch.pth").write_text("\n".join(map(str, (ROOT, *(path for path in sys.path if "site-packages" in path)))))
    install = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-build-isolation"]
    subprocess.run([*install, "--target", str(site), str(folder / "package")], check=True)
    text = (site / "orch_booking-1.0.dist-info/entry_points.txt").read_text()
    (site / "orch_booking-1.0.dist-info/entry_points.txt").write_text(f"{text}broken = broken_target:ENTRY\n")
    (site / "broken_target.py").write_text(BROKEN)

    def run(*arguments: str) -> Process:
        return run_in(two_hosts.folder, str(environment / "bin/python"), *ORCH[1:], *arguments, seconds=180)

    return run


def test_the_example_of_the_page_trains_on_booked_hosts(orch_with_package: Orch, two_hosts: Workspace) -> None:
    (two_hosts.folder / "hosts.txt").write_text("node1\n")
    script = write_script(two_hosts.folder, "import socket\nprint('on', socket.gethostname())\n")
    options = ("--on", "booking", "--booking", "hosts.txt", *two_hosts.options)
    done = expect_exit(orch_with_package("train", script, *options, "--json"))
    assert list(json.loads(done.stdout)["nodes"]) == ["node1"]
    assert "on node1" in orch_with_package("logs").stdout
    help_text = orch_with_package("train", "--on", "booking", "--help").stdout
    assert "booking: the hosts of --inventory that are booked for you." in " ".join(help_text.replace("│", " ").split())


def test_wrong_use_of_the_example_is_explained(orch_with_package: Orch) -> None:
    for arguments, message in (
        (("--on", "booking"), "--on booking needs a file with the booked hosts"),
        (("--booking", "hosts.txt"), "--booking is for --on booking"),
        (("--on", "broken"), "No module named 'package_that_is_missing'"),
    ):
        assert message in expect_exit(orch_with_package("train", "bert-qa", *arguments), 2).stderr
