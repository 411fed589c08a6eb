"""Plan the next attempt of a run that is a job."""

from __future__ import annotations

from dataclasses import replace

from orchestrator.model.hosts import NodeCount
from orchestrator.model.project import Project
from orchestrator.planning.plan import CopyFiles, RunProgram, SubmitScript
from orchestrator.planning.request import Resume
from orchestrator.targets.batch.plan import copy_steps
from tests.support.slurm_plans import SITE, make_request, make_settings, plan_request

RESUME = Resume(
    run_id=SITE.run_id, run_dir=SITE.run_dir, started_by="alice@login1", created=1.0, state="stopped", attempt=2
)


def test_next_attempt_is_another_job_in_the_same_folder() -> None:
    site, request = replace(SITE, resume=RESUME), make_request({"nodes": NodeCount(2)})
    prepare, submit = plan_request(request, run_paths=site).steps
    assert isinstance(prepare, RunProgram)
    assert prepare.command[1:] == (f"{SITE.train}/node.py", "prepare-attempt", SITE.run_dir, "slurm-job.json")
    assert isinstance(submit, SubmitScript)
    assert submit.run_dir == SITE.run_dir
    assert '"--first-attempt=2"' in submit.script
    *_, prepare, submit = plan_request(request, make_settings(login="login1"), run_paths=site).steps
    assert (prepare.command[0], prepare.nodes) == ("python3", submit.nodes), "prepared on the login node"


def test_only_changed_files_replace_those_of_the_copy() -> None:
    earlier = Project(folder="/home/me", files={"a.py": "1", "b.py": "1", "old.py": "1"}, size=1)
    project = replace(earlier, files={"a.py": "2", "b.py": "1", "new.py": "1"})
    resume = replace(RESUME, project=earlier)
    assert copy_steps(project, "/copy", resume) == ()
    (step,) = copy_steps(project, "/copy", replace(resume, sends_code=True))
    assert step == CopyFiles(source="/home/me", files=("a.py", "new.py"), path="/copy", removed={"old.py": "1"})
