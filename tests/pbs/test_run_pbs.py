"""Train on a real PBS: on two nodes, through time limits and faults."""

from __future__ import annotations

import json

import pytest

from tests.pbs.site import NODE, Site
from tests.support.waiting import wait_until

TWO_NODES = ("--on", "pbs", "--nodes", "2", "--ppn", "1", "--backend", "gloo", "--project", "none")
ONE_NODE = tuple("1" if option == "2" else option for option in TWO_NODES)
LONG_RUN = ("--", "--seconds", "0.2", "--steps", "5000")  # of faulty.py; a test always ends it earlier


@pytest.mark.parametrize("launcher", ["accelerate", "torchrun"])
def test_training_runs_on_two_nodes(site: Site, launcher: str) -> None:
    result = site.train("faulty.py", *TWO_NODES, "--launcher", launcher, "--", "--steps", "3")
    assert result["state"] == "done"
    assert result["accounting"]["state"] == "FINISHED"
    run = site.newest_run()
    plan = json.loads((run / "plan.json").read_text())
    assert [node["node"] for node in plan["nodes"]] == ["pbs1", "pbs2"]
    assert json.loads((run / "pbs-job.json").read_text())["job"] == plan["location"]["job"]
    assert not list(run.glob(".task-*"))


def test_stop_ends_the_run_and_its_job(site: Site) -> None:
    site.orch("train", "faulty.py", *TWO_NODES, "--detach", *LONG_RUN)
    run = site.wait_for_event("joined")
    wait_until(lambda: "script" in site.orch("logs", run.name, "--json"), "the first line of the ranks")
    site.orch("stop", run.name)
    assert json.loads((run / "outcome.json").read_text())["state"] == "stopped"
    site.wait_for_no_jobs()
    assert site.processes("faulty.py") == ""


def test_a_run_continues_in_a_new_job_before_its_time_limit(site: Site) -> None:
    assert site.train("checkpointing.py", *TWO_NODES, "--pbs", "walltime=00:00:40", "--", "1")["state"] == "done"
    run = site.newest_run()
    submitted = json.loads((run / "pbs-job.json").read_text())
    assert submitted["restarts"] == 1
    assert json.loads((run / "outcome-0.json").read_text())["problem"].startswith("checkpoint at step")
    assert submitted["job"] == json.loads((run / "plan.json").read_text())["location"]["job"]


def test_an_array_has_a_run_for_each_value(site: Site) -> None:
    result = site.train("faulty.py", *ONE_NODE, "--array", "steps=2,3%1", "--", "--seconds", "0.1")
    assert [run["state"] for run in result["runs"]] == ["done", "done"]
    outputs = [run for run in (site.home / "runs").glob("*/pbs-*.out") if run.parent.name.endswith(("-0", "-1"))]
    assert len(outputs) == 2


def test_a_site_with_several_jobs_lists_the_state_of_each(site: Site) -> None:
    for _ in range(3):  # the third waits for a node
        site.orch("train", "faulty.py", *ONE_NODE, "--detach", *LONG_RUN)
    site.wait_for_event("joined")
    for state in ("waiting", "stopped"):
        listed = json.loads(site.orch("runs", "--inventory", "pbs", "--json"))["runs"]
        assert [run["state"] for run in listed] == ["running", "running", state]
        site.run("qdel", *site.run("qselect", "-s", "Q").stdout.split())


def test_a_lost_node_is_named_keeps_no_process_and_is_replaced_by_fewer_nodes(site: Site) -> None:
    options = ("--max-restarts", "1", "--min-nodes", "1", "--", "--steps", "60", "--seconds", "0.2")
    process = site.start("faulty.py", *TWO_NODES, *options)
    run = site.wait_for_event("joined")
    site.run("ip", "link", "set", "eth0", "down", host=NODE)
    output, _ = process.communicate(timeout=200)
    assert f"{NODE} was lost" in output
    assert json.loads((run / "outcome.json").read_text())["state"] == "done", output
    site.run("ip", "link", "set", "eth0", "up", host=NODE)
    wait_until(lambda: site.processes("faulty.py") == "", "the end of all ranks", 60)
