"""Reach the host that has the programs of a batch system; submit, query and cancel jobs with them."""

from __future__ import annotations

import contextlib
import time
from dataclasses import dataclass
from pathlib import Path

from orch_node.protocol.batch import SCRIPT, job_number

from orchestrator.errors import ConnectionLost, ExecuteError, RequestError
from orchestrator.load.clusters import local_facts
from orchestrator.model.facts import Facts
from orchestrator.model.printable import CommandResult
from orchestrator.planning.plan import SubmitScript
from orchestrator.targets.batch.settings import BatchSettings
from orchestrator.targets.batch.system import (
    NOT_FOUND,
    ONE_RANK,
    PROGRAM_SECONDS,
    BatchSystem,
    ControllerUnreachable,
    JobState,
)
from orchestrator.targets.connections.connection import Ssh
from orchestrator.targets.connections.local import Local
from orchestrator.targets.interpreter import query_interpreter

# Many sites add the batch system's programs to PATH only in login shells.
SHELL = ("bash", "-lc", 'exec "$@"', "bash")
# A system that has not answered a submission lists the job within this time, or its user has to look for it.
ACCEPTED_SECONDS, ACCEPTED_POLL_SECONDS = 60.0, 2.0


@dataclass(slots=True)
class Scheduler:
    """The programs of a batch system on one host; on a login node they run in a login shell.

    Attributes:
        system: the batch system.
        host: the host with the programs.
        cluster: the cluster to query, at a site with several; '' for the host's default.
        submitted: the id of the job that submit() has submitted.
        uncertain: whether the system may have accepted the job although submit() has not found it.
    """

    system: BatchSystem
    host: Local | Ssh
    cluster: str = ""
    submitted: str = ""
    uncertain: bool = False

    def run(self, *command: str, seconds: float = PROGRAM_SECONDS) -> CommandResult:
        """Run one of the programs within a time limit, and return its result.

        Raises:
            ExecuteError: if the program cannot be started, or does not end in time.
        """
        shell = SHELL if isinstance(self.host, Ssh) else ()
        return self.host.capture((*shell, *command), seconds=seconds)

    def submit(self, step: SubmitScript) -> None:
        """Submit the script of a run, or start it in a held allocation.

        Raises:
            ExecuteError: with the system's message, if the job is not accepted.
        """
        self.host.put(f"{step.run_dir}/{SCRIPT}", step.script)
        if step.allocation:
            self.submitted = self.system.start_step(self, step)
            return
        self.cluster = self.system.cluster_of(step)
        try:
            result = self.run(*self.system.submit_command(step))
        except ExecuteError as error:
            self.wait_for_job(step.name, error.message)
            return
        self.submitted, cluster = self.system.parse_job_id(result.out) if result.code == 0 else ("", "")
        self.cluster = cluster or self.cluster
        # A wrapper around the program may print any text and exit with any code.
        if not self.has_accepted(step.name):
            message = self.system.message_of(result)
            is_missing = result.code == NOT_FOUND
            self.uncertain = self.uncertain and not is_missing
            if self.uncertain or self.system.lost_response.search(message):
                self.wait_for_job(step.name, message)
                return
            hint = "Run orch on a login node of the cluster." if is_missing else self.system.rejection_hint
            raise ExecuteError(f"{self.system.title} rejects the job: {message}", hint=hint)

    def wait_for_job(self, name: str, problem: str) -> None:
        """Wait until the system lists a job whose submission it has not answered.

        A busy controller reads the request after the program that sent it has ended.

        Raises:
            ExecuteError: if it does not list the job in time. It may have the job, or accept it later.
        """
        self.uncertain = True
        deadline = time.monotonic() + ACCEPTED_SECONDS
        while not self.has_accepted(name):
            if time.monotonic() > deadline:
                raise ExecuteError.about("unanswered-submission", system=self.system, name=name, problem=problem)
            time.sleep(ACCEPTED_POLL_SECONDS)

    def has_accepted(self, name: str) -> bool:
        """Return whether the system has this user's job with a name, which has not ended; its id is then known."""
        if self.submitted:
            return True
        try:
            jobs = [job for job in self.system.jobs(self, name) if job.name == name and not job.state.ended]
        except ExecuteError:
            jobs, self.uncertain = [], True
        if jobs:
            newest = max(jobs, key=lambda job: job_number(job.job))
            self.submitted, self.cluster = newest.job, newest.cluster
        return bool(jobs)

    def state(self, job: str) -> JobState:
        """Return the state of a job, or of a step.

        Raises:
            ControllerUnreachable: if the system does not respond.
            ConnectionLost: if the login node cannot be reached.
        """
        try:
            return self.system.state(self, job)
        except (ConnectionLost, ControllerUnreachable):
            raise
        except ExecuteError as error:
            raise self.system.unreachable(error.message) from None

    def query_jobs(self, prefix: str) -> dict[str, JobState]:
        """Return the states of the user's jobs whose names begin with a prefix, by name.

        Raises:
            ExecuteError: if the jobs cannot be listed.
        """
        # A resumed run has several jobs: use the one that has not ended, otherwise the newest.
        jobs = sorted(self.system.jobs(self, ""), key=lambda job: (not job.state.ended, job_number(job.job)))
        return {
            f"{job.name}-{job.task}" if job.task else job.name: job.state for job in jobs if job.name.startswith(prefix)
        }

    def cancel(self, job: str) -> None:
        """Cancel a job; a job that the system does not know is ignored.

        Raises:
            ExecuteError: if that fails.
        """
        self.check(job, self.system.cancel(self, job))

    def interrupt(self, job: str) -> None:
        """Send SIGINT to the script of a job, if the system can do that.

        Raises:
            ExecuteError: if that fails.
        """
        if (result := self.system.interrupt(self, job)) is not None:
            self.check(job, result)

    def check(self, job: str, result: CommandResult) -> None:
        """Raise ExecuteError for a job that could not be cancelled or signalled."""
        if result.code != 0 and not self.system.is_unknown(result):
            message = self.system.message_of(result)
            raise ExecuteError(f"Job {job} cannot be cancelled: {message}", hint=self.system.check_hint)


def python_hint(system: BatchSystem) -> str:
    """Return how to name the interpreter of the nodes."""
    return (
        f"Use {system.flag} root=FOLDER with a folder that `orch provision --on {system.name}` has filled, or "
        "--python with an interpreter that has torch. Both must be on a shared file system."
    )


def host_at(login: str) -> Local | Ssh:
    """Return the connection to a host.

    Args:
        login: the host as ~/.ssh/config knows it; '' for this machine.
    """
    return Ssh(login, None) if login else Local()


def query_host(system: BatchSystem, login: str, python: str, *, is_user_python: bool) -> tuple[Facts, str]:
    """Return the facts of the host with the batch system's programs and of its stack, and the user's home folder there.

    Args:
        system: the batch system.
        login: the host; '' for this machine.
        python: the interpreter.
        is_user_python: whether it is neither that of a stack nor the one that runs orch.

    Raises:
        RequestError: if the interpreter does not exist.
        ExecuteError: if the host does not respond as expected.
    """
    if login:
        with contextlib.closing(Ssh(login, None)) as host:
            home = host.attempt(lambda: host.sftp.normalize("."), "find the home folder")
            return query_interpreter(host, host.node, python, python_hint(system)), home
    if not Path(python).exists():
        raise RequestError(f"{python} does not exist.", hint=python_hint(system))
    if not is_user_python:
        return local_facts(python), str(Path.home())
    return query_interpreter(Local(), "this machine", python, python_hint(system)), str(Path.home())


def query_default_ranks(settings: BatchSettings) -> tuple[int, str]:
    """Return the ranks on each node for --ppn auto, with the reason; one rank if the system does not respond."""
    with contextlib.closing(host_at(settings.login or "")) as host:
        programs = Scheduler(settings.system, host, settings.options.get("clusters", ""))
        try:
            return settings.system.default_ranks(programs, settings.options, settings.held)
        except ExecuteError:
            return ONE_RANK
