"""Plan the next attempt of a run that is a job."""

from __future__ import annotations

from dataclasses import replace

from orchestrator.planning.plan import RunProgram, SubmitScript
from orchestrator.planning.request import Resume
from tests.support.recorded import RUN_RECORD
from tests.support.slurm_plans import SITE, make_request, make_settings, plan_request

RESUME = Resume(record=RUN_RECORD, state="stopped")


def test_next_attempt_is_another_job_in_the_same_folder() -> None:
    site, request = replace(SITE, resume=RESUME), make_request({"nodes": 2})
    prepare, submit = plan_request(request, run_paths=site).steps
    assert isinstance(prepare, RunProgram)
    assert prepare.command[1:] == (f"{SITE.train}/node.py", "prepare-attempt", SITE.run_dir, "slurm-job.json")
    assert isinstance(submit, SubmitScript)
    assert submit.run_dir == SITE.run_dir
    assert '"--first-attempt=2"' in submit.script
    *_, prepare, submit = plan_request(request, make_settings(login="login1"), run_paths=site).steps
    assert (prepare.command[0], prepare.nodes) == ("python3", submit.nodes), "prepared on the login node"
