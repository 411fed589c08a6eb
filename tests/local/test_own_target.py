"""Install the packages of docs/how-to/own-targets.md, and train with the targets that they add."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import venv
from pathlib import Path

import pytest

from tests.conftest import ORCH
from tests.local.runs import Orch, Process, expect_exit, run_in, write_script
from tests.local.workspaces import Workspace
from tests.support.files import write_files
from tests.support.pages import blocks

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs/how-to/own-targets.md"
FILES = (
    *("booking/pyproject.toml", "booking/orch_booking/__init__.py", "booking/orch_booking/target.py"),
    *("tsp/orch_spooler/__init__.py", "tsp/orch_spooler/system.py", "tsp/orch_spooler/nodes.py"),
)


@pytest.fixture(scope="module")
def orch_with_package(two_hosts: Workspace, tmp_path_factory: pytest.TempPathFactory) -> Orch:
    """Return orch in an environment that has the page's packages."""
    folder = tmp_path_factory.mktemp("packages")
    files = [block.text + "\n" for block in blocks(PAGE) if block.mark != "shown: a run on one booked host"]
    project = files[0].replace("booking = ", "tsp = ").replace("booking", "spooler")
    write_files(folder, {**dict(zip(FILES, files, strict=True)), "tsp/pyproject.toml": project})
    environment = folder / "venv"
    venv.create(environment, with_pip=False)
    for program in Path(sys.executable).parent.glob("ansible*"):
        (environment / "bin" / program.name).symlink_to(program)
    (site,) = environment.glob("lib/*/site-packages")
    (site / "orch.pth").write_text("\n".join(map(str, (ROOT, *(path for path in sys.path if "site-packages" in path)))))
    install = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-build-isolation"]
    subprocess.run([*install, "--target", str(site), str(folder / "booking"), str(folder / "tsp")], check=True)

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


@pytest.mark.skipif(not shutil.which("tsp"), reason="needs the task spooler")
def test_the_batch_system_of_the_page_trains_and_stops(
    orch_with_package: Orch, two_hosts: Workspace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TS_SOCKET", str(tmp_path / "tsp.socket"))
    script = write_script(two_hosts.folder, "import sys, time\nprint('trained')\ntime.sleep(float(sys.argv[1]))\n")
    train = ("train", script, "--on", "tsp", "--ppn", "2", "--python", sys.executable)
    try:
        expect_exit(orch_with_package(*train, "--", "0"))
        assert orch_with_package("logs").stdout.count("trained") == 2
        for _ in range(2):
            expect_exit(orch_with_package(*train, "--detach", "--", "600"))
        assert "other jobs are ahead of it" in orch_with_package("runs", "--inventory", "tsp").stdout
        for run in list(json.loads(orch_with_package("runs", "--json").stdout)["runs"])[-2:]:
            assert "clean" in expect_exit(orch_with_package("stop", run["id"])).stdout
    finally:
        subprocess.run(["tsp", "-K"], check=False)


def test_wrong_use_of_the_example_is_explained(orch_with_package: Orch) -> None:
    for arguments, message in (
        (("--on", "booking"), "--on booking needs a file with the booked hosts"),
        (("--booking", "hosts.txt"), "--booking is for --on booking"),
    ):
        assert message in expect_exit(orch_with_package("train", "bert-qa", *arguments), 2).stderr
