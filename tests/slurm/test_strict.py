"""A Slurm as large sites have it: jobs are held to their memory, accounts have limits."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator

import pytest

from tests.slurm.conftest import FAULTY, image_of, opened
from tests.slurm.site import LOGIN, USER, Site, orch_words, slurm_site
from tests.slurm.test_run_slurm import SLOW, TWO, Started, train
from tests.support.images import require_docker
from tests.support.waiting import wait_until

pytestmark = pytest.mark.skipif("ORCH_SLURM_SUITE" not in os.environ, reason="needs ORCH_SLURM_SUITE (make test-all)")
HUNGRY = """
import torch, torch.distributed as dist
dist.init_process_group()
dist.barrier()
if dist.get_rank() == 1:
    kept = torch.ones(1 << 29)
dist.barrier()
"""


@pytest.fixture(scope="module")
def strict(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    require_docker()
    folder = opened(tmp_path_factory.mktemp("strict"))
    with slurm_site(folder, image_of(), strict=True) as site:
        (site.home / "faulty.py").write_bytes(FAULTY.read_bytes())
        (site.home / "hungry.py").write_text(HUNGRY)
        yield site


def test_a_rank_that_takes_more_memory_than_its_job_has_is_told_as_that(strict: Site) -> None:
    run = Started(strict, *TWO, "--slurm", "mem=1000", "--slurm", "cpus-per-task=1", script="hungry.py")
    code, words = run.end()
    assert code == 1, words
    first = run.outcome()["first_failure"]
    assert (first["rank"], first["node"], first["signal"]) == (1, "n2", "SIGKILL"), words
    assert "memory" in words, words


def test_what_an_account_does_not_allow_is_told_at_once(strict: Site) -> None:
    words = ("where", "user=alice", "set")
    strict.said("sacctmgr", "-i", "modify", "user", *words, "maxtresperjob=node=1", user="root")
    try:
        done = strict.orch("train", "faulty.py", *TWO, seconds=60)
    finally:
        strict.said("sacctmgr", "-i", "modify", "user", *words, "maxtresperjob=node=-1", user="root")
    assert done.returncode == 1
    assert "so orch cancelled it: its account does not allow so many nodes per job" in done.stderr, done.stderr


def test_an_account_that_is_none_is_named(strict: Site) -> None:
    done = strict.orch("train", "faulty.py", *TWO, "--slurm", "account=chemistry", seconds=60)
    assert done.returncode == 1
    assert "--slurm account=NAME" in done.stderr, done.stderr


def test_pmix_where_it_works_and_in_sruns_words_where_it_does_not(strict: Site) -> None:
    """Bookworm's plug-in wants libpmix.so, which only the development package has."""
    done = strict.orch("train", "faulty.py", *TWO, "--slurm", "pmi=pmix", "--", "--steps", "3")
    words = done.stdout + done.stderr
    assert done.returncode == (0 if strict.newer else 1), words
    said = "last line: srun: error: Invalid MPI type 'pmix'"
    assert (said in words) is not strict.newer, words


def test_a_run_goes_on_while_accounting_is_down(strict: Site) -> None:
    """Before it starts, while it runs, and as it ends."""
    strict.on(LOGIN, "pkill", "-x", "slurmdbd", user="root")
    gone = lambda: strict.on(LOGIN, "pgrep", "-x", "slurmdbd", user="root").returncode  # noqa: E731
    wait_until(gone, "that slurmdbd has ended")
    told = train(strict, *TWO, "--json", "--", "--steps", "5")
    assert (told["state"], told["ranks"]) == ("done", 2)
    run = Started(strict, *TWO, *SLOW)
    run.await_event("joined", 2)
    assert strict.orch("stop", run.folder.name).returncode == 0
    assert run.end()[0] == 130
    strict.said("setpriv", "--reuid", "slurm", "--regid", "slurm", "--clear-groups", "slurmdbd", user="root")


def test_a_home_that_fills_while_a_run_goes_is_told(strict: Site) -> None:
    words = ("--", "--steps", "200", "--lines", "400")
    done = strict.orch("train", "faulty.py", *TWO, "--runs-dir", "/small/runs", *words)
    told = done.stdout + done.stderr
    assert done.returncode == 1, told
    assert "is full (No space left on device)" in told


def test_a_home_that_is_full_takes_no_run(strict: Site) -> None:
    strict.on(LOGIN, "dd", "if=/dev/zero", "of=/small/all", "bs=1k")
    done = strict.orch("train", "faulty.py", *TWO, "--runs-dir", "/small/more")
    assert done.returncode == 1
    assert "No space left on device" in done.stderr, done.stderr
    assert strict.said("squeue", "--noheader") == ""


def test_a_run_on_a_named_cluster_asks_that_cluster_and_has_its_accounting(strict: Site) -> None:
    """Check it by a wrapper around squeue, as the site has one cluster only."""
    wrapper = strict.home / "asking" / "squeue"
    wrapper.parent.mkdir()
    wrapper.write_text('#!/bin/sh\necho "$@" >>"$HOME/asked"\nexec /usr/bin/squeue "$@"\n')
    wrapper.chmod(0o755)
    path = ("env", f"PATH=/home/{USER}/asking:/usr/bin:/bin")
    run = Started(strict, *TWO, "--slurm", "clusters=orch", *SLOW, before=path)
    run.await_event("joined", 2)
    location = json.loads((run.folder / "plan.json").read_text())["location"]
    assert location["cluster"] == "orch"
    assert strict.orch("stop", run.folder.name).returncode == 0
    code, output = run.end()
    assert code == 130, output
    assert "--clusters=orch" in (strict.home / "asked").read_text()
    shown = json.loads(strict.orch("runs", "show", run.folder.name, "--json").stdout)
    assert shown["accounting"]["source"] == "sacct"
    assert shown["accounting"]["job"] == location["job"]
    assert shown["accounting"]["elapsed_seconds"] > 0
    assert shown["accounting"]["max_rss_bytes"] > 50 << 20


def test_a_run_in_an_allocation_has_its_accounting(strict: Site) -> None:
    command = orch_words("train", "faulty.py", *TWO, "--json", "--", "--steps", "50")
    done = strict.on(LOGIN, "salloc", "--nodes=2", "--exclusive", *command, seconds=180)
    assert done.returncode == 0, done.stdout + done.stderr
    recorded = json.loads(done.stdout)["accounting"]
    assert (recorded["source"], recorded["state"]) == ("sacct", "COMPLETED")
    assert recorded["max_rss_bytes"] > 50 << 20, "a rank that has imported torch"


def test_a_cancelled_job_that_slurm_has_forgotten_is_looked_up_in_accounting(strict: Site) -> None:
    conf = strict.etc / "slurm.conf"
    text = conf.read_text()
    conf.write_text(text.replace("MinJobAge=300", "MinJobAge=2"))
    strict.said("scontrol", "reconfigure", user="root")
    try:
        result = train(strict, *TWO, "--detach", "--json", *SLOW)
        folder = strict.home / "runs" / result["run_id"]
        events = folder / "events.jsonl"
        wait_until(lambda: events.exists() and events.read_text().count('"joined"') == 2, "both ranks")
        job = json.loads((folder / "plan.json").read_text())["location"]["job"]
        strict.said("scancel", job)
        wait_until(
            lambda: strict.on(LOGIN, "scontrol", "show", "job", job).returncode,
            "that Slurm has forgotten the job",
            seconds=150,
        )
        done = strict.orch("attach", result["run_id"])
    finally:
        conf.write_text(text)
        strict.said("scontrol", "reconfigure", user="root")
    assert done.returncode == 130, done.stdout + done.stderr
    assert "the job was cancelled" in done.stdout + done.stderr
