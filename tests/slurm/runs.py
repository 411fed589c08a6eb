"""Start runs on the Slurm of the tests, and follow them."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

from tests.conftest import ORCH
from tests.slurm.site import LOGIN, USER, Site
from tests.support.projects import RESULT, write_project
from tests.support.waiting import wait_until
from tests.support.wheels import make_wheel

PROJECT_ON_TWO_NODES = ("--on", "slurm", "--nodes", "2", "--ppn", "1", "--backend", "gloo")
# The script where it is; it starts in the run's folder.
TWO_NODES = (*PROJECT_ON_TWO_NODES, "--project", "none")
ONE_NODE = tuple("1" if option == "2" else option for option in TWO_NODES)
LONG_RUN = ("--", "--seconds", "0.2", "--steps", "5000")  # of faulty.py; a test always ends it earlier
# A user's project, and the only index of packages that its requirements name.
PROJECT = "my project"
TRAIN_PROJECT = ("train", f"{PROJECT}/train.py", *PROJECT_ON_TWO_NODES, "--requirements", "needs.txt")
PROJECT_OUTPUTS = ["conf/small.json", "out/model.txt"]
PRINT_PACKAGE = "\nimport orch_test_greeter\nprint('PACKAGE', orch_test_greeter.__file__, flush=True)\n"
# Runs until the run folder has the file `finish`, so that a test decides what happens before the end of the run.
UNTIL_FINISH = "until_finish.py"
UNTIL_FINISH_SCRIPT = """
import pathlib, time
import torch, torch.distributed as dist
dist.init_process_group()
finish = torch.zeros(1)
while not finish:
    finish.fill_(pathlib.Path("finish").exists())
    dist.all_reduce(finish, dist.ReduceOp.MAX)
    time.sleep(0.1)
"""
# Writes a checkpoint when it is preempted, and ends soon after as many preemptions as its argument says.
CHECKPOINTING = "checkpointing.py"
CHECKPOINTING_SCRIPT = """
import pathlib, sys, time
import torch, torch.distributed as dist
from orch_node import preemption
dist.init_process_group()
checkpoint = pathlib.Path("checkpoint")
first, preemptions = map(int, checkpoint.read_text().split()) if checkpoint.exists() else (0, 0)
for step in range(first, first + (8 if preemptions == int(sys.argv[1]) else 10_000)):
    dist.all_reduce(torch.ones(4))
    time.sleep(0.1)
    if preemption.requested():
        checkpoint.write_text(f"{step} {preemptions + 1}")
        preemption.end(step)
    if step == first:
        print("listening", flush=True)  # before the first query, a signal ends a rank at once
"""


class BackgroundRun:
    """An `orch train` that runs while a test does something to its job.

    Args:
        site: where it runs; `orch` is started on the login node.
        arguments: options of `orch train`, and after `--` those of the script.
        script: in the user's home.
        prefix: a command that starts orch, for example `env` or `salloc` with its options.
    """

    def __init__(self, site: Site, *arguments: str, script: str = "faulty.py", prefix: tuple[str, ...] = ()) -> None:
        self.site = site
        earlier_runs = set(self.find_runs())
        self.process = subprocess.Popen(
            site.exec_command(LOGIN, *prefix, *ORCH, "train", script, *arguments),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        wait_until(lambda: set(self.find_runs()) - earlier_runs or self.process.poll() is not None, "a run")
        new_runs = set(self.find_runs()) - earlier_runs
        assert new_runs, self.process.communicate()
        self.folder = new_runs.pop()

    def find_runs(self) -> list[Path]:
        return [path.parent for path in (self.site.home / "runs").glob("*/plan.json")]

    def job_id(self) -> str:
        return str(json.loads((self.folder / "plan.json").read_text())["location"]["job"])

    def wait_for_event(self, kind: str, count: int = 1) -> None:
        """Wait until the run has recorded so many events of a kind."""
        wait_until(
            lambda: count_events(self.folder, kind) >= count or self.process.poll() is not None,
            f"{count} events {kind}",
        )
        assert count_events(self.folder, kind) >= count, self.process.communicate()

    def finish(self) -> None:
        """Let the script UNTIL_FINISH end."""
        (self.folder / "finish").touch()

    def wait(self, code: int = 0) -> str:
        """Wait for the end of orch, check its exit code, and return its output."""
        out, err = self.process.communicate(timeout=300)
        assert self.process.returncode == code, out + err
        return out + err

    def read_outcome(self) -> dict[str, Any]:
        return json.loads((self.folder / "outcome.json").read_text())

    def count_restarts(self) -> int:
        """Return how often Slurm has started the job again, -1 before its first start."""
        path = self.folder / "slurm-job.json"
        return int(json.loads(path.read_text())["restarts"]) if path.exists() else -1


def count_events(folder: Path, kind: str) -> int:
    events = folder / "events.jsonl"
    return events.read_text().count(f'"event": "{kind}"') if events.exists() else 0


def train(site: Site, *arguments: str, code: int = 0) -> dict[str, Any]:
    """Run faulty.py, check the exit code of orch, and return what it printed with --json."""
    done = site.orch("train", "faulty.py", *arguments, code=code)
    options = arguments[: arguments.index("--")] if "--" in arguments else arguments
    return json.loads(done.stdout) if "--json" in options else {}


def write_project_with_packages(home: Path, visible_home: str, *, git: bool = True) -> None:
    """Write PROJECT, which needs a package, into a home; `visible_home` is its path where orch runs."""
    write_project(home / PROJECT, git=git)
    with (home / PROJECT / "train.py").open("a") as script:
        script.write(PRINT_PACKAGE)
    make_wheel(home / "index", "orch_test_greeter", "1.0", module="VERSION = '1.0'")
    (home / "needs.txt").write_text(f"--no-index\n--find-links {visible_home}/index\norch-test-greeter\n")


def check_project_logs(logs: str) -> None:
    """Check that both ranks have found the project and, in the shared folder of runs, the package."""
    assert logs.count(f"RESULT {RESULT}") == 2
    assert logs.count(f"PACKAGE /home/{USER}/runs/.orch/store/") == 2


def check_project_outputs(copy: Path) -> None:
    """Check that a run has written its files into a copy of the project."""
    assert json.loads((copy / "conf/small.json").read_text()) == {"steps": 4}
    assert (copy / "out/model.txt").read_text() == "trained"


def start_checkpointing_run(site: Site, *arguments: str, prefix: tuple[str, ...] = ()) -> BackgroundRun:
    """Start a run that writes a checkpoint when it is preempted, and wait until its ranks can be preempted."""
    run = BackgroundRun(site, *TWO_NODES, *arguments, "--", "1", script=CHECKPOINTING, prefix=prefix)
    logs = [run.folder / "ranks" / f"rank-{rank}.log" for rank in range(2)]

    def are_listening() -> bool:
        return all(log.exists() and "listening" in log.read_text() for log in logs)

    wait_until(lambda: are_listening() or run.process.poll() is not None, "the first steps")
    assert are_listening(), run.process.communicate()
    return run


def find_row(site: Site, run_id: str) -> dict[str, Any]:
    """Return the entry of a run in the output of `orch runs`."""
    done = site.orch("runs", "--inventory", "slurm", "--json")
    (row,) = [row for row in json.loads(done.stdout)["runs"] if row["id"] == run_id]
    return dict(row)


def wait_for_requeue(run: BackgroundRun) -> None:
    """Wait until the job is back in the queue, where Slurm holds it for two minutes."""
    # Slurm does not answer all queries while a node does not respond.
    query = ("squeue", "--noheader", "--format=%r", "--jobs", run.job_id())
    wait_until(lambda: run.site.run_on(LOGIN, *query).stdout.strip() == "BeginTime", "a requeue")


def release_requeued_job(run: BackgroundRun) -> None:
    """Let a requeued job start after 3 seconds.

    Nodes refuse a job in the same second in which they have ended its previous start ("Killing non-startable batch
    job: Job credential revoked").
    """
    run.site.stdout_of("scontrol", "update", f"jobid={run.job_id()}", "starttime=now+3")


def start_requeued_job(run: BackgroundRun) -> None:
    """Wait until the job is back in the queue, and let it start without Slurm's delay."""
    wait_for_requeue(run)
    release_requeued_job(run)
