"""Claims on cores are valid per machine, not per folder, and survive damaged files."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from orch_node import machine
from orch_node.agent.core_claims import Claims, node_usage
from orch_node.machine import Machine
from orch_node.permissions import UntrustedError
from orch_node.protocol.agent import Claim

from orchestrator.files import LIB
from tests.support.disks import fill, small_file_system
from tests.support.processes import running_python

OTHER_USER = 65534
FIRST_CORE = 9600  # All users of the machine see an announced claim, so it is for cores that no run uses.

ENVIRONMENT = {**os.environ, "PYTHONPATH": str(LIB)}


def make_claim(run: str, *cpus: int) -> Claim:
    """Return a claim of a run whose processes have ended."""
    return Claim(run=run, run_dir="", cpus=cpus)


def test_claim_is_refused_while_its_holder_lives(tmp_path: Path) -> None:
    first, second = Claims(tmp_path), Claims(tmp_path)
    assert first.take(make_claim("one", 0, 1)) == ()
    assert second.take(make_claim("two", 1, 2)) == (make_claim("one", 1),)
    assert second.take(make_claim("two", 2, 3)) == (), "other cores are free"
    first.release()
    assert Claims(tmp_path).take(make_claim("three", 0, 1)) == ()


def test_gpus_are_reserved_as_cores_are(tmp_path: Path) -> None:
    first, second = Claims(tmp_path), Claims(tmp_path)
    assert first.take(Claim(run="one", run_dir="", cpus=(0,), gpus=(0, 1))) == ()
    (conflict,) = second.take(Claim(run="two", run_dir="", cpus=(1,), gpus=(1, 2)))
    assert (conflict.run, conflict.cpus, conflict.gpus) == ("one", (), (1,))
    assert (conflict.run, conflict.describe()) == ("one", "GPUs 1")
    assert second.take(Claim(run="two", run_dir="", cpus=(1,), gpus=(2,))) == ()
    (usage,) = [held for held in node_usage(tmp_path).reserved if held.run == "one"]
    assert (usage.cpus, usage.gpus) == ((0,), (0, 1))


def test_error_of_a_full_disk_names_the_claim(tmp_path: Path) -> None:
    with small_file_system(tmp_path / "disk", "64k"):
        fill(tmp_path / "disk")
        with pytest.raises(OSError, match=f"No space left on device: '{tmp_path}/disk/.*/one"):
            Claims(tmp_path / "disk/claims").take(make_claim("one", 0))


def test_claim_of_another_machine_does_not_conflict(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert Claims(tmp_path).take(make_claim("here", 0, 1)) == ()
    second = Claims(tmp_path)
    assert [claim.run for claim in second.take(make_claim("b", 0))] == ["here"]
    monkeypatch.setattr(machine, "this_machine", lambda: Machine(host="hostb", boot="b"))
    assert Claims(tmp_path).take(make_claim("b", 0, 1)) == ()


def test_two_nodes_of_one_run_can_both_claim_cores_of_one_machine(tmp_path: Path) -> None:
    first, second = Claims(tmp_path), Claims(tmp_path)
    assert first.take(make_claim("run", 0)) == ()
    results: list[object] = []
    thread = threading.Thread(target=lambda: results.append(second.take(make_claim("run", 1))), daemon=True)
    thread.start()
    thread.join(20)
    assert results == [()], "it waits for the other agent"
    assert Claims(tmp_path).take(make_claim("b", 0, 1, 2)) == (make_claim("run", 0, 1),), "they are one conflict"
    first.release()
    assert [claim.cpus for claim in Claims(tmp_path).take(make_claim("b", 0, 1))] == [(1,)]


@given(st.binary(max_size=100))
def test_damaged_claim_files_are_ignored(tmp_path: Path, content: bytes) -> None:
    claims = Claims(tmp_path)
    claims.folder.mkdir(exist_ok=True, parents=True)
    (claims.folder / "damaged.json").write_bytes(content)
    assert claims.take(make_claim("run", 0)) == ()
    claims.release()


@pytest.mark.skipif(os.geteuid() != 0, reason="creates files of another user")
@pytest.mark.parametrize("planted", ["parent", "folder", "link", "lock"])
def test_folder_of_claims_that_another_user_has_created_is_not_used(tmp_path: Path, planted: str) -> None:
    """Refuse the folder: its owner could make orch delete files elsewhere. Pods have their claims in /tmp."""
    claims = Claims(tmp_path / "orch-claims")
    victim = tmp_path / "victim"
    victim.mkdir()
    (victim / "notes.json").write_text("{}")
    claims.folder.mkdir(parents=True)
    if planted == "link":
        claims.folder.rmdir()
        claims.folder.symlink_to(victim)
    elif planted == "lock":
        (claims.folder / "lock").symlink_to(victim / "notes.json")
    else:
        os.chown(claims.folder.parent if planted == "parent" else claims.folder, OTHER_USER, OTHER_USER)
    with pytest.raises(UntrustedError):
        claims.take(make_claim("run", 0))
    assert (victim / "notes.json").read_text() == "{}"


WORKER = """
import sys
from pathlib import Path
from orch_node.agent.core_claims import Claims
from orch_node.protocol.agent import Claim
number = int(sys.argv[2])
for turn in range(60):
    claims = Claims(Path(sys.argv[1]))
    assert claims.take(Claim(run=f"run{number}-{turn}", run_dir="", cpus=(number,))) == ()
    claims.release()
"""


def test_cores_can_be_claimed_and_released_concurrently(tmp_path: Path) -> None:
    command = [sys.executable, "-c", WORKER, str(tmp_path)]
    workers = [subprocess.Popen([*command, str(number)], env=ENVIRONMENT) for number in range(4)]
    assert [worker.wait(120) for worker in workers] == [0] * 4
    assert [path.name for path in Claims(tmp_path).folder.iterdir()] == ["lock"]


ANNOUNCE = """
import os, sys
from orch_node.agent.core_claims import announce
from orch_node.protocol.agent import Claim
os.setuid(int(sys.argv[1]))
held = announce(Claim(run=sys.argv[2], run_dir="", cpus=tuple(map(int, sys.argv[3:]))))
print("ready", flush=True)
sys.stdin.read()
"""


FORGE = """
import os, socket, sys
os.setuid(int(sys.argv[1]))
forged = socket.socket(socket.AF_UNIX, getattr(socket, sys.argv[2]))
forged.bind(("\\0orch-claim:%s:9600:1:a-run:7" % sys.argv[3]).encode())
if sys.argv[2] == "SOCK_STREAM":
    forged.listen()
print("ready", flush=True)
sys.stdin.read()
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="runs a program as another user")
def test_socket_in_the_name_of_another_user_is_no_claim(tmp_path: Path) -> None:
    claims = Claims(tmp_path)
    for kind in ("SOCK_DGRAM", "SOCK_STREAM"):
        with running_python(FORGE, OTHER_USER, kind, OTHER_USER - 1):
            assert claims.take(make_claim("run", FIRST_CORE)) == ()
        claims.release()


@pytest.mark.skipif(os.geteuid() != 0, reason="runs a program as another user")
def test_claims_of_two_users_conflict(tmp_path: Path) -> None:
    claims = Claims(tmp_path / "orch/claims")
    for run, cpus, conflicting in (
        ("foreign", (1, 65), (1, 65)),  # few
        ("20260102-030405-pretraining-of-a-long-name", range(1, 1024), (1, 65, 1000)),  # many
    ):
        with running_python(ANNOUNCE, OTHER_USER, run, *(FIRST_CORE + cpu for cpu in cpus), env=ENVIRONMENT):
            conflicts = claims.take(make_claim("local", *(FIRST_CORE + cpu for cpu in (0, 1, 65, 1000))))
        assert conflicts == (make_claim(f"{run[:40]} (user nobody)", *(FIRST_CORE + cpu for cpu in conflicting)),)
        assert claims.take(make_claim("local", FIRST_CORE, FIRST_CORE + 1, FIRST_CORE + 65)) == ()
        claims.release()
    assert (tmp_path / "orch").stat().st_mode & 0o777 == 0o700
