"""Check that a node with a damaged record, and only that node, counts as not provisioned."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from orchestrator import load
from orchestrator.errors import PlanError
from orchestrator.operations import nodes
from orchestrator.operations.provision import host_of, recorded_root
from orchestrator.planning.request import TrainRequest
from orchestrator.provisioning.plan import ProvisionRequest
from orchestrator.provisioning.session import Listener, Session, open_session
from orchestrator.state import State
from orchestrator.targets.ssh.inputs import plan
from orchestrator.targets.ssh.nodes import ssh_config
from tests.unit.cli.test_flags import make_inventory, make_records, record

WHOLE = json.dumps(record(1))
REQUEST = TrainRequest(recipe="bert-qa", inventory="./lab.yml", backend="gloo")
DAMAGES = {
    "empty": b"",
    "torn": WHOLE[:400].encode(),
    "no facts": b"{}",
    "a list": b"[]",
    "deep": b"[" * 100_000,
    "no text": b"\xff\xfe",
    "huge number": b'{"schema": ' + b"9" * 10_000 + b"}",
    "a wrong value": WHOLE.replace("/opt/orch", "opt").encode(),
}
USELESS = {  # Readable records that give no usable connection.
    "no address": {"address": None},
    "another configuration": {"connection": {"host": "h", "arguments": "-F x"}},
    "unverified": {"connection": {"host": "h", "arguments": "-o StrictHostKeyChecking=no"}},
    "an open quote": {"connection": {"host": "h", "arguments": "-o '"}},
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return one folder for all tests, so that Ansible reads the inventory only once."""
    return tmp_path_factory.mktemp("damaged")


@pytest.fixture(autouse=True)
def lab(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return an inventory of three hosts; each test damages the record of host1."""
    monkeypatch.chdir(folder)
    monkeypatch.setenv("XDG_STATE_HOME", str(folder / "state"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(folder / "cache"))
    inventory = folder / "lab.yml"
    hosts = {f"host{index}": record(index) for index in range(3)}
    if inventory.exists():
        shutil.rmtree(State.of(inventory).folder)
        make_records(inventory, hosts)
    else:
        make_inventory(inventory, hosts)
    return inventory


@pytest.fixture(params=DAMAGES)
def damaged(request: pytest.FixtureRequest, lab: Path) -> Path:
    path = State.of(lab).record("host1")
    path.write_bytes(DAMAGES[request.param])
    return path


def test_a_damaged_record_is_reported_and_other_nodes_are_loaded(damaged: Path) -> None:
    cluster = load.cluster("./lab.yml")
    assert [node.name for node in cluster.nodes] == ["host0", "host2"]
    assert list(cluster.damaged) == ["host1"]
    assert str(damaged) in cluster.damaged["host1"]
    assert "`orch provision`" in cluster.damaged["host1"]
    assert cluster.damaged["host1"].isprintable()


@pytest.mark.parametrize("changes", USELESS.values(), ids=USELESS)
def test_an_unusable_record_does_not_affect_other_nodes(changes: dict[str, Any], lab: Path) -> None:
    State.of(lab).record("host1").write_text(json.dumps(record(1) | changes))
    cluster = load.cluster("./lab.yml")
    assert [node.name for node in cluster.nodes] == ["host0", "host2"]
    assert list(cluster.damaged) == ["host1"]


def test_a_run_on_other_nodes_is_planned_and_warns(damaged: Path) -> None:
    planned = plan(replace(REQUEST, exclude="host1"))
    (warning,) = [decision for decision in planned.run.decisions if decision.topic == "warning"]
    assert "host1" in warning.value + warning.reason
    assert "`orch provision`" in warning.reason


def test_a_run_that_needs_the_node_is_refused_with_the_remedy(damaged: Path) -> None:
    with pytest.raises(PlanError, match="host1") as refused:
        plan(REQUEST)
    assert str(damaged) in refused.value.message
    assert "orch provision ./lab.yml" in refused.value.hint


def test_the_ssh_configuration_has_the_other_nodes(damaged: Path) -> None:
    put = ssh_config(load.cluster("./lab.yml"))
    assert put is not None
    blocks = [line for line in put.content.splitlines() if line.startswith("Host ")]
    assert blocks == ["Host host0", "Host host2"]


@pytest.mark.parametrize("name", ["gone.json", "no name.json", "-oProxyCommand=id.json"])
def test_a_record_of_no_host_of_the_inventory_is_named_too(name: str, lab: Path) -> None:
    (State.of(lab).folder / "nodes" / name).write_text("{")
    cluster = load.cluster("./lab.yml")
    assert len(cluster.nodes) == 3
    assert list(cluster.damaged) == [Path(name).stem]
    assert "delete" in cluster.damaged[Path(name).stem]


def test_each_record_is_read_once(lab: Path) -> None:
    """Count the opened records with an audit hook of the interpreter."""
    text = (
        "import sys\n"
        "opened = []\n"
        "def note(name, args): name == 'open' and opened.append(str(args[0]))\n"
        "sys.addaudithook(note)\n"
        "from orchestrator.planning.request import TrainRequest\n"
        "from orchestrator.targets.ssh.inputs import plan\n"
        "plan(TrainRequest(recipe='bert-qa', inventory='./lab.yml', backend='gloo'))\n"
        "print(sorted(one.rpartition('/')[2] for one in opened if '/nodes/' in one))"
    )
    done = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, cwd=".")
    assert done.stdout.strip() == "['host0.json', 'host1.json', 'host2.json']", done.stderr


def test_orch_nodes_shows_all_of_them(damaged: Path) -> None:
    shown = nodes.rows("./lab.yml")
    assert [row["state"] for row in shown.rows] == ["not verified", "damaged", "not verified"]
    assert len(shown.warnings) == 1
    assert str(damaged) in shown.warnings[0]


def opened(notes: list[str]) -> Session:
    request = ProvisionRequest(inventory="./lab.yml")
    return open_session(request, Listener(note=notes.append), {}, "provision")


def test_provisioning_treats_the_node_as_new(damaged: Path) -> None:
    notes: list[str] = []
    session = opened(notes)
    verified: list[Any] = [host_of(session, name).verified for name in session.nodes]
    assert verified == [{}, {}, {}]
    assert len(notes) == 1
    assert "host1" in notes[0]


def test_scripts_are_synced_to_all_nodes(damaged: Path) -> None:
    notes: list[str] = []
    assert recorded_root(opened(notes)) == "/opt/orch"
    assert "host1" in notes[0]
