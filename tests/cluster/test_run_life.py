"""A run is left alone, found again, stopped, restarted: on three real nodes."""

from __future__ import annotations

import json
import signal
import subprocess
import time
from pathlib import Path

import pytest

from tests.cluster.lab import ON_TWO, ask, await_nothing_left, faulty, pid_of, processes, send, small, start
from tests.cluster.sites import ORCH, Site

pytestmark = pytest.mark.cluster
LONG = ("--steps", "100000")


def test_a_killed_controller_leaves_the_run_alone_and_another_one_finds_it(lab: Site, tmp_path: Path) -> None:
    running = faulty(lab, script=("--steps", "400", "--lines", "1"))
    running.await_step()
    running.process.kill()
    running.process.communicate()
    refused = faulty(lab).end(code=1)
    assert refused["state"] == "refused"
    assert f"run {running.id} has cores" in refused["problem"]
    other = Site(cluster=lab.cluster, folder=tmp_path, variables={"ORCH_RUNS_DIR": "elsewhere"})
    other.describe("node0", "node1", "node2")
    other.orch()  # it learns the nodes' facts; nothing there changes
    of = ("--inventory", str(other.inventory))
    rows = {row["id"]: row for row in ask(other, "runs", *of)["runs"]}
    assert rows[running.id]["state"] in ("running", "done")
    assert rows[running.id]["nodes"] == ["node0", "node1"]
    run = ask(other, "attach", running.id, *of)
    assert (run["state"], run["run_id"]) == ("done", running.id)
    logged = subprocess.run(
        [*ORCH, "logs", running.id, *of, "--rank", "1", "--grep", "line 0$"],
        env=other.environment,
        cwd=other.folder,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert logged.stdout.splitlines() == [f"[1 node1] step {step} line 0" for step in range(400)]


def test_a_lost_connection_is_made_again(lab: Site) -> None:
    """The controller's to node0; the supervisor's to the agent of node1."""
    running = faulty(lab, script=("--steps", "500"))
    running.await_step()
    send(pid_of(running.id, "ssh ", "node.py agent "))
    kill_sessions = "pkill -KILL -f '^sshd: vagrant@notty'"
    lab.cluster.exec("node0", ("sh", "-c", kill_sessions))
    run = running.end(code=0)
    assert run["state"] == "done"
    told = [one["text"] for one in run["timeline"]]
    assert any("node1: the connection to its agent ended; connecting again" in t for t in told)


def test_a_launcher_that_loses_its_connection_goes_on(lab: Site) -> None:
    """hydra's ssh to node1 only starts a proxy there, which then talks to hydra by itself."""
    running = faulty(lab, script=("--steps", "500"))
    running.await_step()
    send(pid_of(running.id, "ssh", "hydra_"))
    assert running.end(code=0)["state"] == "done"
    assert processes(running.id) == {}


@pytest.mark.parametrize("moment", ["start", "evaluation", "checkpoint"])
def test_stop(lab: Site, moment: str) -> None:
    """Whenever it comes; and from a stop at a checkpoint the same command carries on."""
    saves = small(max_steps=300)
    evaluates = small(
        evaluate_before_training="true", do_eval="true", max_eval_samples=40, max_seq_length=384, doc_stride=128
    )
    running = {
        "start": lambda: faulty(lab, script=LONG),
        "evaluation": lambda: start(lab, *evaluates, *ON_TWO),
        "checkpoint": lambda: start(lab, *saves, *ON_TWO),
    }[moment]()
    if moment == "evaluation":
        running.await_event("progress", phase="evaluate before")
    elif moment == "checkpoint":
        running.await_event("progress", phase="save", step=2)  # the first one is whole
    done = ask(lab, "stop", running.id)
    assert done["seconds"] < 10
    assert {node["node"]: node["state"] for node in done["nodes"]} == {"node0": "clean", "node1": "clean"}
    assert processes(running.id) == {}
    out, _ = running.process.communicate(timeout=30)
    assert running.process.returncode == 130, out
    assert json.loads(out)["state"] == "stopped"
    if moment == "checkpoint":
        again = start(lab, *saves, *ON_TWO)
        again.await_event("progress", phase="train")
        steps = [e["step"] for e in again.events("progress") if e.get("phase") == "train"]
        assert steps[0] >= 1, "it goes on from the checkpoint"
        again.process.send_signal(signal.SIGINT)
        assert again.end(code=130)["state"] == "stopped"
        assert processes(again.id) == {}


def test_two_stops_at_once(lab: Site) -> None:
    running = faulty(lab, script=LONG)
    running.await_step()
    command = [*ORCH, "stop", running.id, "--json"]
    both = [subprocess.Popen(command, env=lab.environment, cwd=lab.folder, stdout=subprocess.PIPE) for _ in range(2)]
    for process in both:
        process.communicate(timeout=30)
    assert [process.returncode for process in both] == [0, 0]
    assert processes(running.id) == {}
    running.process.communicate(timeout=30)


def test_a_run_restarts_with_a_spare_node_and_its_loss_goes_on(lab: Site) -> None:
    running = start(lab, *small(max_steps=12), *ON_TWO, "--max-restarts", "1", "--spare-nodes", "1")
    running.await_event("progress", 3, phase="save")
    lab.cluster.kill("node1")
    run = running.end(code=0, seconds=300)
    assert (run["state"], run["attempts"]) == ("done", 2)
    told = [one["text"] for one in run["timeline"]]
    assert "node2 replaces node1" in told
    assert "started 2 ranks on node0, node2 (attempt 2)" in told
    assert steps_of(running.folder) == list(range(1, 13))


def test_a_run_restarts_without_the_lost_node(lab: Site) -> None:
    running = start(lab, *small(max_steps=12), *ON_TWO, "--max-restarts", "1")
    running.await_event("progress", 3, phase="save")
    lab.cluster.cut("node1")
    run = running.end(code=0, seconds=300)
    assert (run["state"], run["attempts"]) == ("done", 2)
    assert steps_of(running.folder) == list(range(1, 13))
    await_nothing_left(running.id, 60)


def steps_of(folder: Path) -> list[int]:
    lines = (folder / "output/metrics.jsonl").read_text().splitlines()
    return sorted({json.loads(line)["step"] for line in lines if "loss" in json.loads(line)})


def test_what_is_left_is_found_and_ended(lab: Site) -> None:
    """A rank whose supervisor and agents are gone, and that was told nothing."""
    running = faulty(lab, script=LONG)
    running.await_step()
    orphan = "import time; time.sleep(600)"
    command = ("env", f"ORCH_RUN_DIR={remote(running.folder)}", "python3", "-c", orphan)
    ask(lab, "stop", running.id)
    running.process.communicate(timeout=30)
    node = lab.cluster.container("node1")
    with subprocess.Popen(["docker", "exec", "--user", "vagrant", node, *command]):
        deadline = time.monotonic() + 10
        while not processes(running.id):
            assert time.monotonic() < deadline
            time.sleep(0.05)
        of = ("--inventory", str(lab.inventory))
        found = ask(lab, "clean", "--check", *of, code=1)
        assert {n["node"]: len(n["left"]) for n in found["nodes"]}["node1"] == 1
        assert processes(running.id)
        ask(lab, "clean", *of)
    assert processes(running.id) == {}


def remote(folder: Path) -> str:
    return str(json.loads((folder / "plan.json").read_text())["run_dir"])


def test_checkpoints_are_fetched(lab: Site) -> None:
    done = start(lab, *small(max_steps=2, save_steps=2), *ON_TWO).end(code=0)
    fetched = ask(lab, "fetch", done["run_id"], "--only", "checkpoint-*")
    assert fetched["brought"]
    again = ask(lab, "fetch", done["run_id"], "--only", "checkpoint-*")
    assert (again["files"], again["brought"]) == (fetched["files"], [])
