"""What breaks a run x what must be seen: who it was, in seconds, and that nothing is left."""

from __future__ import annotations

import re
import signal
import subprocess
import time

import pytest

from tests.cluster.lab import (
    ON_TWO,
    altered,
    ask,
    await_nothing_left,
    faulty,
    pid_of,
    processes,
    rank_pid,
    send,
    small,
    start,
)
from tests.cluster.sites import ROOT, SITE, Site
from tests.support.waiting import until

pytestmark = pytest.mark.cluster
NAMED_SECONDS = 5.0  # a rank that fails is named within so many
LOST_SECONDS = 45.0  # a node that is lost; and what it runs ends by itself within so many more


@pytest.mark.parametrize(
    ("fault", "code", "signal_name", "words", "explained"),
    [
        ("exception", 1, None, "ValueError: boom", None),
        ("exit", 7, None, "sys.exit(7)", None),
        ("kill", 0, "SIGKILL", "", None),
        ("segv", 0, "SIGSEGV", "Segmentation fault", None),
        ("shm", 0, "SIGBUS", "Bus error", "shared memory full"),
    ],
)
def test_a_rank_that_fails_is_named(
    lab: Site, fault: str, code: int, signal_name: str | None, words: str, explained: str | None
) -> None:
    running = faulty(lab, fault)
    run = running.end(code=1)
    failure = run["failure"]
    assert (failure["rank"], failure["node"]) == (1, "node1")
    assert (failure["code"] or 0, failure["signal"]) == (code, signal_name)
    assert words in failure["text"]
    assert explained is None or explained in {one["name"] for one in run["explanations"]}
    told = {event["event"]: event["time"] for event in running.events()}
    happened = next(e["time"] for e in running.events("exit") if e["rank"] == 1)
    assert told["failed"] - happened < NAMED_SECONDS
    assert [node["left"] for node in run["nodes"].values()] == [[], []]
    assert processes(running.id) == {}
    assert "torch_" not in lab.cluster.exec("node1", ("ls", "/dev/shm"))


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSEGV])
def test_a_rank_that_dies_before_it_has_joined_is_named(lab: Site, number: int) -> None:
    running = faulty(lab)
    found: list[int] = []

    def there() -> bool:
        pid = rank_pid(running.id, 1)
        found.extend([pid] if pid else [])
        return bool(found)

    running.until(there, "rank 1")
    send(found[0], number)
    died = time.time()
    run = running.end(code=1)
    assert running.events("joined") == []
    assert (run["failure"]["rank"], run["failure"]["node"]) == (1, "node1")
    assert run["failure"]["signal"] == signal.Signals(number).name
    assert running.events("failed")[0]["time"] - died < NAMED_SECONDS
    assert processes(running.id) == {}


def test_a_rank_that_sleeps_for_ever_is_behind(lab: Site) -> None:
    running = faulty(lab, "sleep", "--stall-timeout", "20")
    run = running.end(code=1)
    assert run["problem"].startswith("no progress for 20 s: 1 of 2 ranks wait in collective")
    assert "behind: node1 rank 1" in run["problem"]
    (stalled,) = running.events("stalled")
    assert "faulty.py" in stalled["stands"]["1"], "its stack says where it sleeps"
    assert "<lambda>" in (running.folder / "stacks/rank-1.txt").read_text()
    assert processes(running.id) == {}


@pytest.mark.parametrize("fate", ["kill", "cut", "pause"])
def test_a_lost_node_is_named_and_ends_the_run(lab: Site, fate: str) -> None:
    running = faulty(lab, script=("--steps", "100000"))
    running.await_step()
    getattr(lab.cluster, fate)("node1")
    lost = time.monotonic()
    run = running.end(code=1, seconds=LOST_SECONDS + 20)
    assert time.monotonic() - lost < LOST_SECONDS
    assert "node1 was lost" in run["problem"]
    assert run["nodes"]["node0"]["left"] == []
    lab.cluster.unpause("node1")
    await_nothing_left(running.id, LOST_SECONDS + 20)
    lab.cluster.repair()
    assert faulty(lab).end(code=0)["state"] == "done", "the next run starts"


def test_a_wrong_torch_on_one_node_is_named(lab: Site) -> None:
    version = "__version__ = '2.12.0'\ndebug = False\ncuda = hip = rocm = xpu = git_version = None\n"
    with altered(lab, "node1", f"{SITE}/torch/version.py", version):
        running = faulty(lab)
        run = running.end(code=1)
    assert (run["failure"]["rank"], run["failure"]["node"]) == (1, "node1")
    assert "another torch than planned" in {one["name"] for one in run["explanations"]}
    assert processes(running.id) == {}


def test_a_port_that_is_taken_is_explained(lab: Site) -> None:
    """Somebody listens where rank 0 is about to."""
    thief = (
        "import glob, json, os, socket, sys, time\n"
        "old = set(sys.argv[1:])\n"
        f"while not (new := set(glob.glob('{ROOT}/runs/*/env.json')) - old): time.sleep(0.01)\n"
        "time.sleep(0.1)\n"
        "port = int(json.load(open(new.pop()))['MASTER_PORT'])\n"
        "server = socket.create_server(('', port)); time.sleep(30)\n"
    )
    known = lab.cluster.exec("node0", ("sh", "-c", f"ls {ROOT}/runs/*/env.json || true")).split()
    node = lab.cluster.container("node0")
    command = ["docker", "exec", node, "python3", "-c", thief, *known]
    with subprocess.Popen(command) as process:
        run = faulty(lab).end(code=1)
        lab.cluster.exec("node0", ("pkill", "-f", "create_server"))
        process.wait()
    assert "port taken" in {one["name"] for one in run["explanations"]}
    assert run["failure"]["rank"] == 0


def test_a_clock_that_is_off_is_told(lab: Site) -> None:
    """The programs on node1 see a clock that is a minute ahead."""
    ahead = "import time; time.time = (lambda now: lambda: now() + 60)(time.time)\n"
    with altered(lab, "node1", f"{SITE}/ahead.pth", ahead):
        run = faulty(lab).end(code=0)
    told = [one["text"] for one in run["timeline"]]
    assert any(re.match(r"node1: its clock is \+\d+ s off node0", text) for text in told)


def test_a_disk_that_is_full_at_a_checkpoint_is_explained(lab: Site) -> None:
    """And what was there before it can still be used: with room again the same command ends."""
    runs = f"{ROOT}/runs"
    kind = ("-t", "tmpfs", "-o", "size=330m,mode=0777", "tmpfs")
    lab.cluster.mount("node0", *kind, runs)
    try:
        running = start(lab, *small(save_steps=2), *ON_TWO)
        run = running.end(code=1, seconds=240)
        assert "disk full" in {one["name"] for one in run["explanations"]}
        assert (run["failure"]["rank"], run["failure"]["node"]) == (0, "node0")
        assert processes(running.id) == {}
        lab.cluster.mount("node0", "-o", "remount,size=2g", runs)
        again = start(lab, *small(save_steps=2), *ON_TWO)
        done = again.end(code=0, seconds=240)
        assert done["state"] == "done"
        assert "resume" in {decision["topic"] for decision in done["decisions"]}
    finally:
        lab.cluster.mount("node0", "--lazy", runs, program="umount")


def state_of(lab: Site, run_id: str) -> str:
    rows = ask(lab, "runs", "--inventory", str(lab.inventory))["runs"]
    return next(str(row["state"]) for row in rows if row["id"] == run_id)


def test_node0_dies_and_the_others_end_by_themselves(lab: Site) -> None:
    running = faulty(lab, "none", "--detach", script=("--steps", "100000"))
    running.end(code=0)
    running.until(lambda: rank_pid(running.id, 1) is not None, "rank 1 on node1")
    lab.cluster.kill("node0")
    await_nothing_left(running.id, LOST_SECONDS + 20)
    done = ask(lab, "stop", running.id, code=1)
    states = {node["node"]: node["state"] for node in done["nodes"]}
    assert states == {"node0": "unreachable", "node1": "clean"}
    assert done["seconds"] < 10
    lab.cluster.start("node0")
    # A container that starts again is another machine: the run may live until its lease expires.
    until(lambda: state_of(lab, running.id) == "killed", "the end of the lease", seconds=180)
    assert faulty(lab).end(code=0)["state"] == "done"


def test_without_its_supervisor_a_run_ends_and_is_told_as_killed(lab: Site) -> None:
    running = faulty(lab, script=("--steps", "100000"))
    running.await_step()
    send(pid_of(running.id, "node.py supervise "))
    run = running.end(code=1, seconds=LOST_SECONDS)
    assert run["state"] == "killed"
    await_nothing_left(running.id, LOST_SECONDS)
