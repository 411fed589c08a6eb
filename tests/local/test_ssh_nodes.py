"""`orch` with a node behind a real sshd, recorded as provisioning leaves it."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from orchestrator.paths import STANDALONE, TRAIN
from tests.conftest import orch_environment

Orch = Callable[..., subprocess.CompletedProcess[str]]
SCRIPT = """
import torch, torch.distributed as dist
value = torch.ones(1)
dist.all_reduce(value)
print("sum", value.item())
"""
LONG = "import time, torch\nprint('begun', flush=True)\ntime.sleep(600)\n"


@dataclass(frozen=True, slots=True, kw_only=True)
class Site:
    """`state`: the controller's folder of the inventory; `root`: orch's on the node."""

    state: Path
    root: Path

    def files(self) -> list[str]:
        return sorted(str(path.relative_to(self.state)) for path in self.state.rglob("*"))


@pytest.fixture
def site(tmp_path: Path, sshd: str) -> Site:
    root = tmp_path / "node-root"
    (root / "stacks").mkdir(parents=True)
    (root / "train").symlink_to(TRAIN)
    (root / "stacks/current").symlink_to(Path(sys.prefix))
    inventory = tmp_path / "lab.yaml"
    inventory.write_text("all:\n  hosts:\n    far:\n      ansible_host: 127.0.0.1\n")
    environment = orch_environment(tmp_path)
    text = (
        "import sys; from pathlib import Path; from orchestrator.state import State; "
        "print(State.of(Path(sys.argv[1])).folder)"
    )
    done = subprocess.run(
        [sys.executable, "-c", text, str(inventory)], env=environment, capture_output=True, text=True, check=True
    )
    state = Path(done.stdout.strip())
    (state / "nodes").mkdir(parents=True)
    (state / "nodes/far.json").write_text(json.dumps(record(root, sshd)))
    (tmp_path / "own.py").write_text(SCRIPT)
    (tmp_path / "long.py").write_text(LONG)
    return Site(state=state, root=root)


def record(root: Path, config: str) -> dict[str, Any]:
    """What provisioning keeps of a node: its facts, and how it is reached."""
    facts = [sys.executable, "-I", "-S", str(STANDALONE / "facts.py"), sys.prefix]
    done = subprocess.run(facts, capture_output=True, text=True, check=True)
    pairs = (line.split() for line in Path(config).read_text().splitlines())
    said = {name: value for name, value, *_ in pairs}
    connection = {
        "host": said["HostName"],
        "port": said["Port"],
        "key": said["IdentityFile"],
        "arguments": f"-o UserKnownHostsFile={said['UserKnownHostsFile']}",
    }
    found = {"root": str(root), "address": "127.0.0.1", "connection": connection}
    return {**json.loads(done.stdout), **found}


WHERE = ("--inventory", "./lab.yaml")
RANKS = ("--ppn", "2", "--backend", "gloo", "--launcher", "torchrun")


def test_a_dry_run_writes_nothing_and_its_script_can_be_pasted(orch: Orch, site: Site, tmp_path: Path) -> None:
    before = site.files()
    dry = orch("train", "own.py", *WHERE, *RANKS, "--dry-run")
    assert dry.returncode == 0, dry.stderr
    assert site.files() == before
    assert not (tmp_path / "runs").exists()
    assert not (site.root / "runs").exists()
    pasted = subprocess.run(["sh"], input=dry.stdout, capture_output=True, text=True, cwd=tmp_path)
    assert pasted.returncode == 0, pasted.stdout + pasted.stderr
    assert site.state.joinpath("ssh_config").stat().st_mode & 0o077 == 0
    listed = json.loads(orch("runs", *WHERE, "--json").stdout)["runs"]
    assert [(one["state"], one["nodes"]) for one in listed] == [("done", ["far"])]
    logs = orch("logs", *WHERE)
    assert logs.stdout.count("sum 2.0") == 2, logs.stderr
    assert open_to_others(site.root / "runs") == []


def test_rank_0_is_heard_while_the_run_is_watched(orch: Orch, site: Site) -> None:
    done = orch("train", "own.py", *WHERE, *RANKS)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stderr.count("sum 2.0") == 1


def test_the_verbs_are_the_same_from_the_controller_and_from_another(orch: Orch, site: Site, tmp_path: Path) -> None:
    done = orch("train", "long.py", *WHERE, *RANKS, "--detach", "--json")
    assert done.returncode == 0, done.stderr
    run = json.loads(done.stdout)["run_id"]
    assert (site.state / "ssh_config").exists()
    with subprocess.Popen(
        [sys.executable, "-m", "orchestrator.cli.main", "logs", run, "--follow", "--grep", "beg"],
        cwd=tmp_path,
        env=orch_environment(tmp_path),
        stdout=subprocess.PIPE,
        text=True,
    ) as follower:
        assert follower.stdout is not None
        said = {follower.stdout.readline() for _ in range(2)}
        assert said == {f"[{rank} far] begun\n" for rank in (0, 1)}
        other = ("--runs-dir", "elsewhere")
        shown = orch("runs", *other, "show", "last", *WHERE, "--json")
        assert json.loads(shown.stdout)["state"] == "running", shown.stderr
        left = orch("clean", "--check", *WHERE)
        assert left.returncode == 0, left.stdout + left.stderr
        stopped = json.loads(orch("stop", run, *WHERE, *other, "--json").stdout)
        assert [(node["node"], node["state"]) for node in stopped["nodes"]] == [("far", "clean")]
        assert follower.wait(timeout=60) == 0
    attached = orch("attach", run)
    assert attached.returncode == 130, attached.stdout + attached.stderr
    assert json.loads(orch("runs", "show", run, "--json").stdout)["state"] == "stopped"
    fetched = orch("fetch", run, "--from", str(site.root / "runs" / run / "ranks"), "--json")
    assert json.loads(fetched.stdout)["files"] >= 2, fetched.stderr
    assert orch("report", run, *other, *WHERE).returncode == 0
    assert open_to_others(site.root / "runs") == open_to_others(tmp_path / "runs") == []


def open_to_others(base: Path) -> list[str]:
    """Files and folders of runs that another user of the machine could look at."""
    assert base.is_dir()
    found = [path for path in (base, *base.rglob("*")) if path.stat().st_mode & 0o077]
    return [str(path.relative_to(base.parent)) for path in found]


def test_a_node_that_does_not_answer_fails_the_run_before_it_begins(orch: Orch, site: Site) -> None:
    path = site.state / "nodes/far.json"
    recorded = json.loads(path.read_text())
    recorded["connection"]["port"] = "9"
    path.write_text(json.dumps(recorded))
    done = orch("train", "own.py", *WHERE, *RANKS)
    assert done.returncode == 1
    assert "error: far does not answer" in done.stderr
    assert "nothing was started" in done.stderr
    assert "orch attach" not in done.stderr
    assert [run["state"] for run in json.loads(orch("runs", "--json").stdout)["runs"]] == ["failed"]


def test_an_unknown_host_key_is_named_and_nothing_is_started(orch: Orch, site: Site, tmp_path: Path) -> None:
    (tmp_path / "ssh/known_hosts").write_text("")
    done = orch("train", "own.py", *WHERE, *RANKS)
    assert done.returncode == 1
    assert "error: far: its host key is not known here; nothing was started." in done.stderr
    assert "ssh-keyscan HOST >> ~/.ssh/known_hosts" in done.stderr
    assert "keep running" not in done.stderr
