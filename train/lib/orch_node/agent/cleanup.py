"""Find and end leftovers of runs on this node: `node.py cleanup COMMAND FOLDER ...`.

  end RUN_DIR [--node0 [--planned]]  end a run's processes here; on node0 its supervisor first,
                                     which may be about to start or have no folder yet
  clean RUNS_DIR [--dry-run] [--store STORE] [--damaged] [--except ID ...]
                                     end the leftovers of runs that nobody watches, remove their segments in /dev/shm
                                     and the unused folders of the store, and move runs with unreadable records and
                                     without processes to RUNS_DIR/damaged
  store STORE [--dry-run] [--except ID ...]
                                     remove the unused folders of a store that several nodes share

Prints one JSON object. A run's files are not needed; the name of its folder is enough.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

from orch_node import atomic_write, content_store, lease, machine
from orch_node.agent import containers, processes, run_folders, shared_memory
from orch_node.agent.shared_memory import Removal
from orch_node.protocol import files, outcome, values
from orch_node.protocol.node_reports import Cleaned
from orch_node.protocol.outcome import ProcessRecord

ELSEWHERE_SECONDS = 4.0  # below 10 s together with the patience below and the connection
SUPERVISOR_SECONDS = 5.0  # for the supervisor to end the run on all nodes itself
PATIENCE_SECONDS = 2.0
TERM_SECONDS = 2.0
END_SECONDS = 3.5  # below 10 s together with the two above


def end(run_dir: str, patience: float, *, node0: bool, planned: bool = False) -> Cleaned:
    """End the run here.

    Its supervisor ends it best, on all nodes, so it is asked first and given time.

    Args:
        run_dir: folder of the run.
        patience: seconds to wait if no supervisor is here.
        node0: whether this is the supervisor's node.
        planned: whether the run may not have started yet; its folder is created then, so that a
            supervisor that is about to start finds the request to stop.
    """
    folder = Path(run_dir)
    if planned:
        folder.parent.mkdir(mode=0o700, exist_ok=True)
        folder.mkdir(mode=0o700, exist_ok=True)
    if folder.is_dir():
        (folder / files.STOP).touch(0o600)
    initial = processes.run_processes(run_dir)
    supervisors = [process for process in initial if process.role == "supervisor"]
    if not is_starting(folder):  # a starting supervisor does not catch the signal yet, but reads STOP
        for supervisor in supervisors:
            machine.send_signal(*supervisor.key, signal.SIGTERM)
    seconds = SUPERVISOR_SECONDS if supervisors else patience
    wait_while(lambda: (node0 and is_starting(folder)) or bool(processes.run_processes(run_dir)), seconds)
    ended, remaining = end_here(folder)
    elsewhere = wait_for_another_host(folder) if node0 and not supervisors else ()
    has_not_begun = node0 and planned and is_starting(folder) and not elsewhere
    if (supervisors or has_not_begun) and not remaining:
        record_stop(folder, supervisors[0].pid if supervisors else None)
    segments, run = remove_segments(folder), folder.name
    later = {process.key for process in (*ended, *remaining)}
    return Cleaned(
        ended={run: (*(process for process in initial if process.key not in later), *ended)},
        left={run: (*remaining, *elsewhere)},
        segments={run: segments.removed},
        segments_left={run: segments.remaining},
    )


def end_here(run_dir: Path) -> tuple[tuple[ProcessRecord, ...], tuple[ProcessRecord, ...]]:
    """End the run's processes and containers here; return those that have ended, and those that remain."""
    find = functools.partial(processes.run_processes, str(run_dir))
    ended, living = processes.terminate(find, term_seconds=TERM_SECONDS, seconds=END_SECONDS)
    removed, remaining = containers.remove_all(run_dir)
    return (*ended, *removed), (*living, *remaining)


def wait_for_another_host(run_dir: Path) -> tuple[ProcessRecord, ...]:
    """Wait until a supervisor that is not visible here has ended; return it if it has not.

    It checks for the file STOP every few seconds.
    """
    wait_while(lambda: lease.may_run_elsewhere(run_dir) is not None, ELSEWHERE_SECONDS)
    supervisor = lease.may_run_elsewhere(run_dir)
    if supervisor is None or supervisor.identity is None:
        return ()
    name = f"on {supervisor.identity.machine.host}, not visible here; it was asked to stop"
    return (ProcessRecord(pid=supervisor.pid, role="supervisor", name=name, state="unknown"),)


def record_stop(run_dir: Path, pid: int | None) -> None:
    """Write the files of a supervisor that was ended before it could write them, or that has not begun."""
    now = time.time()
    stopped = outcome.Outcome(state=outcome.STOPPED, started=now, ended=now)
    if pid is not None and not (run_dir / files.SUPERVISOR).exists():
        text = outcome.render(outcome.SupervisorProcess(pid=pid, started=now))
        atomic_write.write(run_dir / files.SUPERVISOR, text)
    if not (run_dir / files.OUTCOME).exists():
        atomic_write.write(run_dir / files.OUTCOME, outcome.render(stopped))


def is_starting(run_dir: Path) -> bool:
    """Return whether the run's files are here but its supervisor has not begun."""
    return run_dir.is_dir() and not (run_dir / files.SUPERVISOR).exists()


def wait_while(condition: Callable[[], bool], seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline and condition():
        time.sleep(processes.SCAN_SECONDS)


def remove_segments(run_dir: Path, *, dry_run: bool = False) -> Removal:
    """Remove the run's segments in /dev/shm, or only list them."""
    removed: set[str] = set()
    remaining: set[str] = set()
    for notes in run_dir.glob("shm-*.json"):
        removal = shared_memory.remove(notes, dry_run=dry_run)
        removed |= {*removal.removed}
        remaining |= {*removal.remaining}
        if not dry_run:
            shared_memory.forget(notes)
    return Removal(tuple(sorted(removed)), tuple(sorted(remaining - removed)))


def clean(options: argparse.Namespace) -> Cleaned:
    """End and remove what runs below a folder have left that neither a supervisor nor an agent watches."""
    base, by_run = Path(options.folder).absolute(), leftovers_by_run(options.folder)
    watched = [run for run in by_run if any(process.role in processes.WATCHERS for process in by_run[run])]
    folders = sorted(base.glob("*"))
    # The supervisors of these runs may live on hosts that are not visible here.
    elsewhere = [folder.name for folder in folders if lease.may_run_elsewhere(folder) is not None]
    living = {*watched, *options.excluded, *elsewhere}
    ended: dict[str, tuple[ProcessRecord, ...]] = {}
    leftovers = {run: tuple(by_run[run]) for run in by_run if run not in living}
    for run in leftovers if not options.dry_run else ():
        ended[run], leftovers[run] = end_here(base / run)
    ended_runs = [folder for folder in folders if folder.name not in living]
    removals = {folder.name: remove_segments(folder, dry_run=options.dry_run) for folder in ended_runs}
    damaged = run_folders.list_runs(base).damaged if options.damaged else ()
    targets = {run.folder: run_folders.set_aside(base / run.folder) for run in damaged if not options.dry_run}
    return Cleaned(
        ended=ended,
        left=leftovers,
        segments={run: removal.removed for run, removal in removals.items() if removal.removed},
        segments_left={run: removal.remaining for run, removal in removals.items() if removal.remaining},
        unused=unused_folders(options.store, options),
        damaged=damaged,
        moved={folder: path for folder, path in targets.items() if path},
    )


def leftovers_by_run(runs_dir: str) -> dict[str, list[ProcessRecord]]:
    """Return the living processes and the containers here, by run."""
    bases = {os.path.realpath(runs_dir), os.path.abspath(runs_dir)}
    by_run: dict[str, list[ProcessRecord]] = {}
    for runs, process in processes.processes_with_runs():
        for run in {os.path.basename(run) for run in map(os.fsdecode, runs) if os.path.dirname(run) in bases}:
            by_run.setdefault(run, []).append(process)
    by_run = {run: processes.with_proxies(by_run[run]) for run in sorted(by_run)}
    with contextlib.suppress(containers.ContainerError):  # there is no engine
        for folder, contained in containers.containers_by_folder(containers.RUN).items():
            if os.path.dirname(folder) in bases:
                by_run.setdefault(os.path.basename(folder), []).extend(contained)
    return by_run


def unused_folders(folder: Path | None, options: argparse.Namespace) -> tuple[str, ...]:
    """Return the folders of a store that no run uses, after they are removed unless it is a dry run."""

    def is_living(run_dir: str) -> bool:
        is_elsewhere = lease.may_run_elsewhere(Path(run_dir)) is not None
        return Path(run_dir).name in options.excluded or is_elsewhere or bool(processes.run_processes(run_dir))

    return content_store.remove_unused(folder, is_living, dry_run=options.dry_run) if folder else ()


def parse(argv: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="node.py cleanup")
    parser.add_argument("command", choices=("end", "clean", "store"))
    parser.add_argument("folder")
    parser.add_argument("--patience", type=float, default=PATIENCE_SECONDS)
    parser.add_argument("--node0", action="store_true")
    parser.add_argument("--planned", action="store_true")
    parser.add_argument("--except", dest="excluded", nargs="*", default=[], help="runs watched on other nodes")
    parser.add_argument("--store", type=Path)
    parser.add_argument("--damaged", action="store_true")
    parser.add_argument("--dry-run", action="store_true")
    return parser.parse_args(argv)


def main(argv: list[str]) -> None:
    """Run the command of the arguments, and print its report as JSON."""
    options = parse(argv)
    if options.command == "end":
        report = end(options.folder, options.patience, node0=options.node0, planned=options.planned)
    elif options.command == "store":
        report = Cleaned(unused=unused_folders(Path(options.folder), options))
    else:
        report = clean(options)
    print(values.render(report))
