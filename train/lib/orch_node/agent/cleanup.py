"""What is left of runs on this node, and its end: `node.py cleanup COMMAND FOLDER ...`.

  end RUN_DIR [--node0 [--planned]]  end a run's processes here; on node0 its supervisor first,
                                     which may be about to start, or not even have its folder yet
  look RUNS_DIR                      leftovers of runs that nobody watches any more
  clean RUNS_DIR [--except ID ...]   end them, and remove their segments in /dev/shm

One JSON object on standard output. Needs nothing of the run but its folder's name.
"""

from __future__ import annotations

import argparse
import os
import signal
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from orch_node import supervisor_state, whole_files
from orch_node.agent import containers, processes, shared_memory
from orch_node.agent.processes import Process, record
from orch_node.agent.shared_memory import SHM, Removal
from orch_node.protocol import cleanup, files, outcome
from orch_node.protocol.cleanup import Cleaned, EndedAndLeft, Leftovers, RunEnded
from orch_node.protocol.outcome import ProcessRecord

ELSEWHERE_SECONDS = 4.0  # with the patience below and connecting, below 10 s
SUPERVISOR_SECONDS = 5.0  # for the supervisor to end the run on all nodes itself
PATIENCE_SECONDS = 2.0
TERM_SECONDS = 2.0
END_SECONDS = 3.5  # with the two above, below 10 s


def end(run_dir: str, patience: float, *, node0: bool, planned: bool = False) -> RunEnded:
    """End the run here. Its supervisor does it best, on all nodes: it is asked where it lives, and
    given time where it does not."""
    began = time.monotonic()
    if planned:
        for folder in (Path(run_dir).parent, Path(run_dir)):
            folder.mkdir(mode=0o700, exist_ok=True)
    ask_to_stop(Path(run_dir))
    before = processes.of_run(run_dir)
    supervisors = [one for one in before if one.role == "supervisor"]
    if not about_to_start(Path(run_dir)):  # it does not catch the signal yet, and looks for STOP
        for one in supervisors:
            processes.send(one, signal.SIGTERM)
    wait(
        lambda: (node0 and about_to_start(Path(run_dir))) or bool(processes.of_run(run_dir)),
        SUPERVISOR_SECONDS if supervisors else patience,
    )
    ended = processes.end(lambda: processes.of_run(run_dir), term_seconds=TERM_SECONDS, seconds=END_SECONDS)
    left = {one.key for one in ended.left}
    elsewhere = wait_for_another_host(Path(run_dir)) if node0 and not supervisors else ()
    removed, kept = containers.clear(Path(run_dir))
    if supervisors and not ended.left:
        tell_the_end(Path(run_dir), supervisors[0].pid)
    memory = remove_segments(Path(run_dir))
    return RunEnded(
        ended=(*(record(one) for one in before if one.key not in left), *removed),
        left=(*map(record, ended.left), *kept, *elsewhere),
        supervisor=bool(supervisors),
        segments=memory.gone,
        segments_left=memory.left,
        seconds=round(time.monotonic() - began, 2),
    )


def ask_to_stop(run_dir: Path) -> None:
    """For a supervisor that is only about to start."""
    if run_dir.is_dir():
        (run_dir / files.STOP).touch(0o600)


def wait_for_another_host(run_dir: Path) -> tuple[ProcessRecord, ...]:
    """Wait until a supervisor that is not visible here has ended; return it if it has not.

    It looks for the file STOP every few seconds.
    """
    wait(lambda: supervisor_state.may_run_elsewhere(run_dir) is not None, ELSEWHERE_SECONDS)
    supervisor = supervisor_state.may_run_elsewhere(run_dir)
    if supervisor is None or supervisor.identity is None:
        return ()
    host = supervisor.identity.machine.host
    name = f"on {host}, not visible here; it was asked to stop"
    return (ProcessRecord(pid=supervisor.pid, role="supervisor", name=name, state="unknown"),)


def tell_the_end(run_dir: Path, pid: int) -> None:
    """What a supervisor would have written that was ended before it could."""
    now = time.time()
    stopped = outcome.Outcome(
        state=outcome.STOPPED, first_failure=None, problem=None, launcher_code=None, started=now, ended=now
    )
    if not (run_dir / files.SUPERVISOR).exists():
        text = outcome.render_supervisor(outcome.SupervisorProcess(pid=pid, started=now))
        whole_files.write(run_dir / files.SUPERVISOR, text)
    if not (run_dir / files.OUTCOME).exists():
        whole_files.write(run_dir / files.OUTCOME, outcome.render(stopped))


def about_to_start(run_dir: Path) -> bool:
    """Whether the run's files are here but its supervisor has not begun."""
    return run_dir.is_dir() and not (run_dir / files.SUPERVISOR).exists()


def wait(still: Callable[[], bool], seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline and still():
        time.sleep(processes.SCAN_SECONDS)


def notes_of(run_dir: Path) -> list[Path]:
    return sorted(run_dir.glob("shm-*.json"))


def remove_segments(run_dir: Path) -> Removal:
    removals = [shared_memory.remove(notes) for notes in notes_of(run_dir)]
    for notes in notes_of(run_dir):
        shared_memory.forget(notes)
    return Removal(
        gone=tuple(path for one in removals for path in one.gone),
        left=tuple(path for one in removals for path in one.left),
    )


def look(runs_dir: str) -> Leftovers:
    """Processes of runs below `runs_dir` that neither a supervisor nor an agent watches here."""
    elsewhere = run_elsewhere(runs_dir)
    found = leftovers(runs_dir)
    runs = {run: tuple(map(record, left)) for run, left in found.items() if run not in elsewhere}
    living = {*watched(runs_dir), *elsewhere}
    for run, left in contained(runs_dir, living).items():
        there = tuple(containers.record(one[:12]) for one in left)
        runs[run] = (*runs.get(run, ()), *there)
    removable, kept = segments(runs_dir, living)
    return Leftovers(runs=runs, segments=removable, segments_left=kept)


def run_elsewhere(runs_dir: str) -> list[str]:
    """Return the ids of the runs whose supervisors may live on hosts that are not visible here."""
    folders = sorted(Path(runs_dir).glob("*"))
    return [one.name for one in folders if supervisor_state.may_run_elsewhere(one) is not None]


def contained(runs_dir: str, living: set[str]) -> dict[str, list[str]]:
    """Run id -> its containers here, of runs that do not live."""
    bases = {os.path.realpath(runs_dir), os.path.abspath(runs_dir)}
    return {
        os.path.basename(folder): found
        for folder, found in containers.by_folder().items()
        if os.path.dirname(folder) in bases and os.path.basename(folder) not in living
    }


def leftovers(runs_dir: str) -> dict[str, list[Process]]:
    return {
        run: living
        for run, living in by_folder(runs_dir).items()
        if not any(one.role in processes.WATCHERS for one in living)
    }


def watched(runs_dir: str) -> list[str]:
    """Ids of the runs that a supervisor or an agent watches here."""
    living = by_folder(runs_dir)
    return [run for run in living if any(one.role in processes.WATCHERS for one in living[run])]


def by_folder(runs_dir: str) -> dict[str, list[Process]]:
    """Run id -> its living processes here."""
    bases = {os.path.realpath(runs_dir), os.path.abspath(runs_dir)}
    found: dict[str, str] = {}
    for runs, _ in processes.by_run(processes.ancestors(os.getpid())):
        for run in map(os.fsdecode, runs):
            if os.path.dirname(run) in bases:
                found[os.path.basename(run)] = run
    return {run: processes.of_run(folder) for run, folder in sorted(found.items())}


Segments = dict[str, tuple[str, ...]]  # run id -> paths


def segments(runs_dir: str, living: set[str]) -> tuple[Segments, Segments]:
    """What runs have left in /dev/shm: what may be removed, and the rest."""
    removable: Segments = {}
    left: Segments = {}
    for folder in sorted(Path(runs_dir).glob("*")):
        notes = [] if folder.name in living else notes_of(folder)
        known = {name for one in notes for name in shared_memory.removable(one)}
        rest = {name for one in notes for name in shared_memory.remaining(one)} - known
        for found, names in ((removable, known), (left, rest)):
            if names:
                found[folder.name] = tuple(SHM + name for name in sorted(names))
    return removable, left


def clean(runs_dir: str, kept: list[str]) -> Cleaned:
    """End what `look` finds but of the runs `kept`: their supervisors live on another node."""
    kept = [*kept, *run_elsewhere(runs_dir)]
    living = {*kept, *watched(runs_dir)}
    runs = {run: end_leftovers(runs_dir, run) for run in leftovers(runs_dir) if run not in kept}
    for run in contained(runs_dir, living):
        ended, left = containers.clear(Path(runs_dir, run))
        known = runs.get(run, EndedAndLeft())
        runs[run] = replace(known, ended=(*known.ended, *ended), left=(*known.left, *left))
    folders = [one for one in sorted(Path(runs_dir).glob("*")) if one.name not in living]
    removals = {folder.name: remove_segments(folder) for folder in folders}
    return Cleaned(
        runs=runs,
        segments={run: one.gone for run, one in removals.items() if one.gone},
        segments_left={run: one.left for run, one in removals.items() if one.left},
    )


def end_leftovers(runs_dir: str, run: str) -> EndedAndLeft:
    folder = os.path.join(os.path.abspath(runs_dir), run)
    ended = processes.end(lambda: processes.of_run(folder), term_seconds=TERM_SECONDS, seconds=END_SECONDS)
    return EndedAndLeft(ended=tuple(map(record, ended.ended)), left=tuple(map(record, ended.left)))


def main(argv: list[str]) -> None:
    parser = argparse.ArgumentParser(prog="node.py cleanup")
    parser.add_argument("command", choices=("end", "look", "clean"))
    parser.add_argument("folder")
    parser.add_argument("--patience", type=float, default=PATIENCE_SECONDS)
    parser.add_argument("--node0", action="store_true")
    parser.add_argument("--planned", action="store_true")
    parser.add_argument("--except", dest="kept", nargs="*", default=[])
    options = parser.parse_args(argv)
    found: RunEnded | Leftovers | Cleaned
    if options.command == "end":
        found = end(options.folder, options.patience, node0=options.node0, planned=options.planned)
    elif options.command == "look":
        found = look(options.folder)
    else:
        found = clean(options.folder, options.kept)
    print(cleanup.render(found))
