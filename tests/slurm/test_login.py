"""`--slurm login=HOST`: from a machine that reaches a real login node by a real sshd."""

from __future__ import annotations

import json
import os
import shutil
import sys
from pathlib import Path

import pytest

from tests.slurm.conftest import FAULTY
from tests.slurm.laptop import NAME, Laptop
from tests.slurm.site import LOGIN, Site
from tests.slurm.test_run_slurm import SLOW, TWO
from tests.support.waiting import wait_until

# Slurm's programs run in login shells there, and separate the fields of a job in the same way.
BANNER = 'echo "RULES | be kind | clean up | pay"\necho "MAINTENANCE|Friday|all nodes|sorry"\n'


@pytest.fixture(scope="session")
def laptop(site: Site, tmp_path_factory: pytest.TempPathFactory) -> Laptop:
    found = Laptop(site, tmp_path_factory.mktemp("laptop"))
    (site.home / ".bash_profile").write_text(BANNER)
    shutil.copy(FAULTY, found.home)
    (found.home / "orch-slurm.toml").write_text(f'login = "{NAME}"\npython = "{sys.executable}"\n')
    return found


def job_of(folder: Path) -> str:
    return str(json.loads((folder / "plan.json").read_text())["location"]["job"])


def running(laptop: Laptop) -> list[Path]:
    """Runs here whose ranks have joined, and which have not ended."""
    events = (laptop.home / "runs").glob("*/events.jsonl")
    return [
        path.parent for path in events if '"joined"' in path.read_text() and not (path.parent / "outcome.json").exists()
    ]


def test_a_run_and_every_verb_from_a_laptop(ready: Site, laptop: Laptop) -> None:
    told = json.loads(laptop.orch("train", "faulty.py", *TWO, "--json", "--", "--steps", "5"))
    assert (told["state"], told["ranks"]) == ("done", 2)
    name = told["run_id"]
    there = ready.home / "runs" / name
    assert (there / "files" / "0" / "faulty.py").read_bytes() == FAULTY.read_bytes()
    (row,) = json.loads(laptop.orch("runs", "--inventory", "slurm", "--json"))["runs"]
    assert (row["id"], row["state"], row["nodes"]) == (name, "done", ["n1", "n2"])
    assert "[1 n2] finished" in laptop.orch("logs", name)
    laptop.orch("attach", name)
    (there / "output").mkdir(exist_ok=True)
    (there / "output" / "model.bin").write_bytes(b"weights")
    laptop.orch("fetch", name, "--from", f"/home/alice/runs/{name}/output")
    assert (laptop.home / "runs" / name / "output" / "model.bin").read_bytes() == b"weights"
    laptop.orch("clean", "--inventory", "slurm")
    # Whoever is on the login node itself has the run, too.
    assert "[1 n2] finished" in ready.orch("logs", name).stdout


def test_a_login_node_that_goes_away_ends_no_run(ready: Site, laptop: Laptop) -> None:
    """It comes back while somebody follows; then the run is stopped from elsewhere."""
    process = laptop.start("train", "faulty.py", *TWO, "--show", "all", *SLOW)
    wait_until(lambda: running(laptop), "ranks that have joined")
    (folder,) = running(laptop)
    ready.on(LOGIN, "pkill", "^sshd", user="root")  # also sshd-session
    try:
        assert process.stderr is not None
        lines = iter(process.stderr.readline, "")
        assert any("the run continues there, reconnecting" in line for line in lines)
    finally:
        ready.said("/usr/sbin/sshd", user="root")
    assert any(f"connected to {NAME} again" in line for line in lines)
    laptop.orch("stop", folder.name)
    _, err = process.communicate(timeout=120)
    assert process.returncode == 130, err
    assert ready.said("squeue", "--noheader") == ""
    told = json.loads((folder / "outcome.json").read_text())
    assert set(told["nodes"]) == {"n1", "n2"}, told


def test_a_login_node_with_another_key_is_not_believed(ready: Site, laptop: Laptop) -> None:
    known = laptop.known_hosts.read_text()
    laptop.known_hosts.write_text("")
    try:
        words = laptop.orch("train", "faulty.py", *TWO, code=1)
    finally:
        laptop.known_hosts.write_text(known)
    assert "known_hosts" in words


def test_a_login_shell_that_prints_is_named(ready: Site, laptop: Laptop) -> None:
    shell = ready.home / ".bashrc"
    shell.write_text("echo Welcome to the cluster\n")
    try:
        output = laptop.orch("train", "faulty.py", *TWO, code=1)
    finally:
        shell.unlink()
    assert "Welcome to the cluster" in output, output


@pytest.mark.skipif("ORCH_SLURM_SUITE" not in os.environ, reason="needs ORCH_SLURM_SUITE (make test-all)")
def test_a_shared_folder_is_filled_once_and_trains(ready: Site, laptop: Laptop) -> None:
    root = ("--slurm", "python=", "--slurm", "root=/home/alice/orch")
    told = json.loads(laptop.orch("provision", "--on", "slurm", *root, "--json", seconds=900))
    assert [one["failed"] for one in told["nodes"]] == [0]
    again = json.loads(laptop.orch("provision", "--on", "slurm", *root, "--json", seconds=300))
    assert [one["changed"] for one in again["nodes"]] == [0]
    # Packed as well, and run from a folder of each node's own.
    root = (*root, "--slurm", "local=/var/tmp/orch")
    for changed in (1, 0):
        words = laptop.orch("provision", "--on", "slurm", *root, "--json", seconds=300)
        assert [one["changed"] for one in json.loads(words)["nodes"]] == [changed]
    asked = ("--on", "slurm", "--nodes", "2", *root, "--set", "num_train_epochs=1", "--json")
    told = json.loads(laptop.orch("train", "bert-qa", *asked, seconds=900))
    assert (told["state"], told["ranks"], told["backend"]) == ("done", 2, "ccl")
    folder = laptop.home / "runs" / told["run_id"]
    assert json.loads((folder / "output" / "results.json").read_text())
    filled = ready.home / "runs" / told["run_id"] / "local-stack.log"
    said = filled.read_text().splitlines()
    assert sorted(line.split()[0] for line in said if line.endswith(" filled")) == ["n1:", "n2:"]
