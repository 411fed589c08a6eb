"""The training process of one rank: joins the process group, then runs the script as __main__."""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import faulthandler
import gc
import importlib
import io
import json
import logging
import os
import runpy
import sys
import threading
import traceback
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import NoReturn

from orch_node import preemption
from orch_node.agent.containers import read_spec
from orch_node.events import send
from orch_node.program import PROGRAM
from orch_node.protocol import files
from orch_node.protocol import layout as layouts
from orch_node.protocol.events import Heartbeat, Joined, Raised, ScriptEnded
from orch_node.protocol.outcome import EX_TEMPFAIL
from orch_node.rank import communication, frameworks, heartbeat, precision, training_check
from orch_node.rank import metrics as rank_metrics
from orch_node.rank.checks import (
    RankError,
    check_environment,
    check_node,
    check_placement,
    check_preload,
    check_torch,
    repair,
)
from orch_node.rank.process_group import join
from orch_node.rank.script import check_program, run_program
from orch_node.rank.stack_traces import StackTraces
from orch_node.rank.stderr import StderrRecorder
from orch_node.rank.step_progress import StepProgress

OURS = (str(PROGRAM), str(Path(__file__).resolve().parent), runpy.__file__, "<frozen ")
ENDING_THEMSELVES = ("ccl", "mpi")


def main(argv: list[str]) -> None:
    faulthandler.enable()
    run_dir = Path(os.environ["ORCH_RUN_DIR"])
    layout = layouts.parse((run_dir / files.LAYOUT).read_text())
    placement = layout.placement(int(os.environ["RANK"]))
    node = layout.entry(placement.node)
    written = json.loads((run_dir / files.ENVIRONMENT).read_text())
    environment = {**written, **node.env, **placement.env}
    traces = StackTraces(placement.node)
    try:
        cpus = check_placement(placement)
        check_node(node)
        check_environment(environment)
        spec = read_spec(run_dir)
        check_preload(environment.get("LD_PRELOAD", ""), repair(node, spec))
        check_program(argv)
        torch = import_torch()
        check_torch(node, torch.__version__, spec)
        torch.set_num_threads(placement.threads)
        join(torch, layout, placement, environment)
        check_environment(environment)  # the backend has been imported, and has not changed it
        argv = precision.choose(torch, layout, placement.rank, argv)
    except Exception as error:
        give_up(error)
    joined = Joined(
        node=placement.node,
        pid=os.getpid(),
        cpus=tuple(cpus),
        threads=torch.get_num_threads(),
        backend=layout.backend,
        torch=str(torch.__version__),
    )
    send(joined)
    metrics = rank_metrics.begin(torch, run_dir, placement.rank)
    callbacks = [traces.look]
    if placement.rank == 0:
        callbacks.append(StepProgress(lambda: metrics.steps).look)
    heartbeat.begin(torch, lambda: metrics.steps, callbacks)
    agreement = preemption.AGREEMENT  # its own collectives train nothing
    training_check.begin(torch, lambda: communication.operations(torch) - agreement.collectives)
    frameworks.note_losses()
    if run_script(argv, lambda: heartbeat.current(torch, metrics.steps)):
        count = communication.world_collectives(torch)
        send(ScriptEnded(world_collectives=count, trained=metrics.trained))
    leave(torch, layout.backend)


def import_torch() -> ModuleType:
    """An import leaves no garbage: looking for it would only take time, now and whenever all
    objects are looked at again."""
    gc.disable()
    torch = importlib.import_module("torch")
    gc.freeze()
    gc.enable()
    return torch


def run_script(argv: list[str], counts: Callable[[], Heartbeat]) -> bool:
    """Run the user's program as Python would; end this process if it fails.

    Returns:
        Whether this process has done its part of the run: it has neither been preempted nor been
        forked by the script.
    """
    process = os.getpid()
    stderr = StderrRecorder()
    try:
        run_program(argv)
    except SystemExit as exit_:
        if exit_.code == EX_TEMPFAIL:
            make_room()
            return False
        if exit_.code not in (None, 0):
            give_up(exit_, counts, stderr.reason())
    except BaseException as error:
        give_up(error, counts)
    return os.getpid() == process


def make_room() -> None:
    """Ranks that have agreed on it leave the group in order, as at a good end; backends take any
    other exit code for a failure. One that ends by itself could wait there for ever."""
    if not preemption.AGREEMENT.agreed:
        flush()
        os._exit(EX_TEMPFAIL)
    mark = files.made_room(int(os.environ["RANK"]))
    Path(os.environ["ORCH_RUN_DIR"], mark).touch(0o600)


def leave(torch: ModuleType, backend: str) -> NoReturn:
    """End well: the group first, then what an interpreter does at exit.

    Stock gloo often aborts in the C++ teardown ("terminate called without an active exception"),
    also after destroy_process_group(), and would turn a finished training into a failed one; so
    that is left out, also for plug-ins, which may be gloo inside. The bindings of ccl end the
    process themselves there, when MPI is finalized. The interpreter is not taken down: a thread of
    torch that still lets go of something of Python's would abort the process then. Its lock is
    held (PyDLL), so that no thread of Python's runs beside what C and C++ end.
    """
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()
    vars(threading)["_shutdown"]()
    atexit._run_exitfuncs()
    flush()
    flush_files()
    if backend in ENDING_THEMSELVES:
        ctypes.PyDLL(None).exit(0)
    os._exit(0)


def flush_files() -> None:
    """Those that the script has left open, as the end of an interpreter does."""
    for thing in gc.get_objects():
        if issubclass(type(thing), (io.TextIOWrapper, io.BufferedWriter, io.BufferedRandom)):
            with contextlib.suppress(OSError, ValueError):
                thing.flush()


def flush() -> None:
    logging.shutdown()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):  # closed by the script, or a full disk
            stream.flush()


def give_up(error: BaseException, counts: Callable[[], Heartbeat] | None = None, reason: str = "") -> NoReturn:
    """Report why and end at once: an orderly exit could wait for ranks that wait for this one.

    Args:
        error: what ended the script.
        counts: what the rank had done until then; only with them is it known which collective
            failed.
        reason: what the script wrote before it called sys.exit() with a number.
    """
    if counts:
        send(counts())
    if isinstance(error, SystemExit):
        code = error.code if isinstance(error.code, int) else 1
        text = f"sys.exit({error.code!r})"
        if isinstance(error.code, int) and reason:
            text = reason
        if not isinstance(error.code, int):
            write_last(str(error.code))
    else:
        code = 130 if isinstance(error, KeyboardInterrupt) else 1
        text = own_traceback(error)
    send(Raised(text=text))  # before the log, whose disk may be full
    if not isinstance(error, SystemExit):
        write_last(text)
    flush()
    os._exit(code)


def write_last(text: str) -> None:
    with contextlib.suppress(OSError, ValueError):  # as in flush()
        print(text, file=sys.stderr)


def own_traceback(error: BaseException) -> str:
    """The traceback without our own frames and those of runpy; a RankError is one line."""
    if isinstance(error, RankError):
        return f"error: {error}"
    frame = error.__traceback__
    while frame and frame.tb_next and frame.tb_frame.f_code.co_filename.startswith(OURS):
        frame = frame.tb_next
    return "".join(traceback.format_exception(type(error), error, frame)).rstrip()
