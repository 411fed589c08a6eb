"""Jobs of Slurm whose programs return recorded output."""

from __future__ import annotations

from pathlib import Path

from orch_node.protocol import outcome as outcomes
from orch_node.protocol.outcome import Outcome

from orchestrator.model.printable import CommandResult
from orchestrator.runs import store
from orchestrator.targets.batch.handle import BatchHandle
from orchestrator.targets.batch.slurm import SLURM, job_state
from orchestrator.targets.batch.system import BatchSystem, JobState

FORGOTTEN = CommandResult(code=1, out="", err="slurm_load_jobs error: Invalid job id specified")


class RecordedHost:
    """A host that returns recorded results of Slurm's programs.

    Attributes:
        results: the results of all commands, in order.
        program_results: the results by program, if there are none in order. The last one is repeated.
        commands: the commands so far.
    """

    def __init__(self, *results: CommandResult, **program_results: CommandResult | list[CommandResult]) -> None:
        self.results = list(results)
        self.program_results = program_results
        self.commands: list[tuple[str, ...]] = []

    def put(self, path: str, content: str) -> None:
        self.commands.append(("put", path))

    def close(self) -> None:
        self.commands.append(("close",))

    def capture(self, argv: tuple[str, ...], *, seconds: float) -> CommandResult:
        self.commands.append(argv)
        if not self.program_results:
            return self.results.pop(0)
        result = self.program_results.get(argv[0], CommandResult(code=0, out="", err=""))
        if isinstance(result, list):
            result = result.pop(0) if len(result) > 1 else result[0]
        return result


def make_result(out: str) -> CommandResult:
    """Return the result of a program that has printed this and succeeded."""
    return CommandResult(code=0, out=out, err="")


def squeue(state: str, reason: str = "None", nodes: str = "n1") -> CommandResult:
    """Return the result of squeue for a job in this state."""
    return make_result(f"12|orch-x|{state}|N/A|{nodes}|cpu|{reason}\n")


def make_job(state: str, reason: str = "None", partition: str = "cpu") -> JobState:
    """Return job 12 of two nodes in this state."""
    return job_state("12", state, start="N/A", nodes="n[1-2]", partition=partition, reason=reason)


def make_handle(folder: Path, host: RecordedHost, system: BatchSystem = SLURM) -> BatchHandle:
    """Return the handle of a run whose files are on this machine."""
    handle = BatchHandle(system, store.load(folder).record, folder)
    handle.host = host  # type: ignore[misc, assignment]
    return handle


def write_job_outcome(folder: Path, **fields: object) -> None:
    """Write the outcome that a job has recorded, by default of a failed one."""
    recorded = Outcome(**{"state": "failed", "started": 1.0, "ended": 2.0, **fields})  # type: ignore[arg-type]
    (folder / "outcome.json").write_text(outcomes.render(recorded))
