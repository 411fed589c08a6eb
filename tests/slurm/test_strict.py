"""Test runs on a Slurm as large sites have it, with cgroups that limit the memory of jobs, and with accounting."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator

import pytest

from tests.slurm.conftest import prepare, start_site
from tests.slurm.runs import LONG_RUN, TWO_NODES, BackgroundRun, train
from tests.slurm.site import LOGIN, USER, Site
from tests.support.files import write_program
from tests.support.waiting import wait_until

pytestmark = pytest.mark.skipif("ORCH_SLURM_SUITE" not in os.environ, reason="needs ORCH_SLURM_SUITE (make test-all)")
# Rank 1 takes more memory than a job of 1000 MB has, and keeps it until Slurm, which looks every second, has seen it.
HUNGRY_SCRIPT = """
import time
import torch, torch.distributed as dist
dist.init_process_group()
dist.barrier()
if dist.get_rank() == 1:
    memory = torch.ones(1 << 29)
    time.sleep(20)
dist.barrier()
"""


@pytest.fixture(scope="module")
def strict_site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    yield from start_site(tmp_path_factory, "strict", strict=True)


@pytest.fixture
def site(strict_site: Site) -> Site:
    """Return a Slurm with cgroups and accounting, and without jobs."""
    (strict_site.home / "hungry.py").write_text(HUNGRY_SCRIPT)
    return prepare(strict_site)


def test_a_rank_that_takes_more_memory_than_its_job_has_is_named(site: Site) -> None:
    """Use nodes whose names in Slurm differ from their host names."""
    run = BackgroundRun(site, *TWO_NODES, "--slurm", "mem=1000", "--slurm", "cpus-per-task=1", script="hungry.py")
    output = run.wait(code=1)
    failure = run.read_outcome()["first_failure"]
    assert (failure["rank"], failure["node"], failure["signal"]) == (1, "beta2", "SIGKILL"), output
    assert "memory" in output, output


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
    wrapper = '#!/bin/sh\necho "$@" >>"$HOME/queries"\nexec /usr/bin/squeue "$@"\n'
    write_program(site.home / "recording" / "squeue", wrapper)
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
