"""Test runs on a Slurm as large sites have it, which limits the memory of jobs and the resources of accounts."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator

import pytest

from tests.slurm.conftest import prepare, start_site
from tests.slurm.runs import HUNGRY_SCRIPT, LONG_RUN, TWO_NODES, BackgroundRun, cancel_until_forgotten, train
from tests.slurm.site import LOGIN, USER, Site
from tests.support.waiting import wait_until

pytestmark = pytest.mark.skipif("ORCH_SLURM_SUITE" not in os.environ, reason="needs ORCH_SLURM_SUITE (make test-all)")


@pytest.fixture(scope="module")
def strict_site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    yield from start_site(tmp_path_factory, "strict", strict=True)


@pytest.fixture
def site(strict_site: Site) -> Site:
    """Return a Slurm with cgroups and accounting, and without jobs."""
    (strict_site.home / "hungry.py").write_text(HUNGRY_SCRIPT)
    return prepare(strict_site)


def test_a_rank_that_takes_more_memory_than_its_job_has_is_named(site: Site) -> None:
    run = BackgroundRun(site, *TWO_NODES, "--slurm", "mem=1000", "--slurm", "cpus-per-task=1", script="hungry.py")
    output = run.wait(code=1)
    failure = run.read_outcome()["first_failure"]
    assert (failure["rank"], failure["node"], failure["signal"]) == (1, "n2", "SIGKILL"), output
    assert "memory" in output, output


def test_a_run_that_its_account_does_not_allow_fails_at_once(site: Site) -> None:
    modify = ("sacctmgr", "-i", "modify", "user", "where", f"user={USER}", "set")
    site.stdout_of(*modify, "maxtresperjob=node=1", user="root")
    try:
        done = site.orch("train", "faulty.py", *TWO_NODES, code=1)
    finally:
        site.stdout_of(*modify, "maxtresperjob=node=-1", user="root")
    assert "so orch cancelled it: its account does not allow so many nodes per job" in done.stderr, done.stderr


def test_pmix_works_or_sruns_message_is_shown(site: Site) -> None:
    """Use the plug-in of Debian; that of bookworm needs libpmix.so, which only the development package has."""
    options = (*TWO_NODES, "--slurm", "pmi=pmix", "--", "--steps", "3")
    done = site.orch("train", "faulty.py", *options, code=0 if site.is_trixie else 1)
    output = done.stdout + done.stderr
    message = "reports: srun: error: Invalid MPI type 'pmix'"
    assert (message in output) is not site.is_trixie, output


def test_a_run_continues_while_accounting_is_down(site: Site) -> None:
    """Stop accounting before the run starts, and start it after the run has ended."""
    site.run_on(LOGIN, "pkill", "-x", "slurmdbd", user="root")
    try:
        wait_until(
            lambda: site.run_on(LOGIN, "pgrep", "-x", "slurmdbd", user="root").returncode, "that slurmdbd has ended"
        )
        result = train(site, *TWO_NODES, "--json", "--", "--steps", "5")
        assert (result["state"], result["ranks"]) == ("done", 2)
        run = BackgroundRun(site, *TWO_NODES, *LONG_RUN)
        run.wait_for_event("joined", 2)
        site.orch("stop", run.folder.name)
        run.wait(code=130)
    finally:
        site.stdout_of("setpriv", "--reuid", "slurm", "--regid", "slurm", "--clear-groups", "slurmdbd", user="root")


def test_a_run_on_a_named_cluster_queries_that_cluster_and_has_its_accounting(site: Site) -> None:
    """Record the options of squeue with a wrapper, because this Slurm has one cluster only."""
    wrapper = site.home / "recording" / "squeue"
    wrapper.parent.mkdir(exist_ok=True)
    wrapper.write_text('#!/bin/sh\necho "$@" >>"$HOME/queries"\nexec /usr/bin/squeue "$@"\n')
    wrapper.chmod(0o755)
    path = ("env", f"PATH=/home/{USER}/recording:/usr/bin:/bin")
    run = BackgroundRun(site, *TWO_NODES, "--slurm", "clusters=orch", *LONG_RUN, prefix=path)
    run.wait_for_event("joined", 2)
    location = json.loads((run.folder / "plan.json").read_text())["location"]
    assert location["cluster"] == "orch"
    site.orch("stop", run.folder.name)
    run.wait(code=130)
    assert "--clusters=orch" in (site.home / "queries").read_text()
    accounting = json.loads(site.orch("runs", "show", run.folder.name, "--json").stdout)["accounting"]
    assert accounting["source"] == "sacct"
    assert accounting["job"] == location["job"]
    assert accounting["elapsed_seconds"] > 0
    assert accounting["max_rss_bytes"] > 50 << 20


def test_a_cancelled_job_that_slurm_has_forgotten_is_looked_up_in_accounting(site: Site) -> None:
    settings = site.etc / "slurm.conf"
    text = settings.read_text()
    settings.write_text(text.replace("MinJobAge=300", "MinJobAge=2"))
    site.stdout_of("scontrol", "reconfigure", user="root")
    try:
        done = site.orch("attach", cancel_until_forgotten(site), code=130)
    finally:
        settings.write_text(text)
        site.stdout_of("scontrol", "reconfigure", user="root")
    assert "the job was cancelled" in done.stdout + done.stderr
