"""Test `--slurm login=HOST` from a machine that reaches a real login node by a real sshd."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest

from tests.slurm import runs
from tests.slurm.laptop import NAME, Laptop
from tests.slurm.site import LOGIN, USER, Site
from tests.support.projects import ARGUMENTS
from tests.support.waiting import wait_until


def find_running(laptop: Laptop) -> list[Path]:
    """Return the folders of runs whose ranks have joined, and which have not ended."""
    events = (laptop.home / "runs").glob("*/events.jsonl")
    return [
        path.parent for path in events if '"joined"' in path.read_text() and not (path.parent / "outcome.json").exists()
    ]


def test_all_commands_work_from_a_laptop(site: Site, laptop: Laptop) -> None:
    """Train a project with packages, which go through the login node."""
    runs.write_project_with_packages(laptop.home, str(laptop.home))
    result = json.loads(laptop.orch(*runs.TRAIN_PROJECT, "--json", "--", *ARGUMENTS))
    assert (result["state"], result["ranks"]) == ("done", 2)
    name = result["run_id"]
    remote, local = site.home / "runs" / name, laptop.home / "runs" / name
    rows = json.loads(laptop.orch("runs", "--inventory", "slurm", "--json"))["runs"]
    assert [(row["state"], row["nodes"]) for row in rows if row["id"] == name] == [("done", ["n1", "n2"])]
    runs.check_project_logs(laptop.orch("logs", name))
    runs.check_project_logs(site.orch("logs", name).stdout)  # the login node itself has the run, too
    laptop.orch("attach", name)
    runs.check_project_outputs(remote / "project")
    assert sorted(json.loads(laptop.orch("fetch", name, "--json"))["brought"]) == runs.PROJECT_OUTPUTS
    runs.check_project_outputs(local / "output")
    laptop.orch("fetch", name, "--code")
    assert json.loads((local / "code/conf/small.json").read_text()) == {"steps": 3}
    (remote / "output").mkdir(exist_ok=True)
    (remote / "output" / "model.bin").write_bytes(b"weights")
    laptop.orch("fetch", name, "--from", f"/home/{USER}/runs/{name}/output")
    assert (local / "output" / "model.bin").read_bytes() == b"weights"
    locks = [path for path in (site.home / "runs/.orch/store").glob(".*.lock") if name in path.read_text()]
    sent = [lock.with_name(lock.name[1:].removesuffix(".lock")) for lock in locks]
    for lock in locks:
        os.utime(lock, (0, 0))
    output = laptop.orch("clean", "--inventory", "slurm")
    assert sent
    assert all(path.name in output and not path.exists() for path in sent), output


def test_a_run_continues_while_its_login_node_is_unreachable(site: Site, laptop: Laptop) -> None:
    """Restart sshd while orch follows the run, then stop the run with another orch."""
    process = laptop.start("train", "faulty.py", *runs.TWO_NODES, "--show", "all", *runs.LONG_RUN)
    wait_until(lambda: find_running(laptop), "ranks that have joined")
    (folder,) = find_running(laptop)
    site.run_on(LOGIN, "pkill", "^sshd", user="root")  # also sshd-session
    try:
        lines = iter(process.stderr.readline, "")
        assert any("the run continues there, reconnecting" in line for line in lines)
    finally:
        site.stdout_of("/usr/sbin/sshd", user="root")
    assert any(f"connected to {NAME} again" in line for line in lines)
    laptop.orch("stop", folder.name)
    _, err = process.communicate(timeout=300)
    assert process.returncode == 130, err
    site.wait_for_no_jobs()
    outcome = json.loads((folder / "outcome.json").read_text())
    assert set(outcome["nodes"]) == {"n1", "n2"}, outcome


def test_a_login_node_with_an_unknown_key_is_refused(site: Site, laptop: Laptop) -> None:
    known_hosts = laptop.known_hosts.read_text()
    laptop.known_hosts.write_text("")
    try:
        output = laptop.orch("train", "faulty.py", *runs.TWO_NODES, code=1)
    finally:
        laptop.known_hosts.write_text(known_hosts)
    assert "known_hosts" in output


@pytest.mark.skipif("ORCH_SLURM_SUITE" not in os.environ, reason="needs ORCH_SLURM_SUITE (make test-all)")
def test_a_shared_folder_is_filled_once_and_trains(site: Site, laptop: Laptop) -> None:
    version = "import sys; print(sys.version_info[:2])"
    if site.stdout_of("python3", "-c", version) != str(sys.version_info[:2]):
        pytest.skip("needs nodes with the Python of the tests, for which the bindings are built: bookworm has 3.11")
    root: tuple[str, ...] = ("--slurm", "root=/home/alice/orch")
    provision = ("provision", "--on", "slurm", *root, "--json")
    (host,) = json.loads(laptop.orch(*provision, seconds=900))["nodes"]
    assert host["failed"] == 0
    (host,) = json.loads(laptop.orch(*provision))["nodes"]
    assert host["changed"] == 0
    private = site.stdout_of("find", "/home/alice/orch", "!", "-type", "l", "!", "-perm", "-o=r", "-printf", "%P ")
    assert not private, f"other users of the cluster cannot read {private}"
    options = ("--on", "slurm", "--nodes", "2", *root, "--set", "num_train_epochs=1", "--json")
    result = json.loads(laptop.orch("train", "bert-qa", *options, seconds=900))
    assert (result["state"], result["ranks"], result["backend"]) == ("done", 2, "ccl")
    folder = laptop.home / "runs" / result["run_id"]
    assert json.loads((folder / "output" / "results.json").read_text())
