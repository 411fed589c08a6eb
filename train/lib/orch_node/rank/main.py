"""Run the training process of one rank: join the process group, then run the script as __main__."""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import faulthandler
import functools
import gc
import importlib
import io
import json
import logging
import os
import re
import runpy
import sys
import threading
import traceback
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import NoReturn

from orch_node import preemption
from orch_node.agent.containers import read_spec
from orch_node.events import LONGEST_TEXT, send
from orch_node.program import PROGRAM
from orch_node.protocol import files
from orch_node.protocol.environment import DEFAULTS, IMAGE_PACKAGES, USER_VARIABLES, user_names
from orch_node.protocol.events import Heartbeat, Joined, Raised, ScriptEnded
from orch_node.protocol.layout import RankEntry, RunLayout
from orch_node.protocol.layout import parse as parse_layout
from orch_node.protocol.outcome import EX_TEMPFAIL
from orch_node.rank import checks, child_processes, communication, computation, frameworks, training_check
from orch_node.rank import metrics as rank_metrics
from orch_node.rank.hooks import replace_function
from orch_node.rank.output import TRACEBACK, StackTraces, reason_in, record_stderr
from orch_node.rank.process_group import compare_weights, join, set_mpi_variables
from orch_node.rank.script import add_module_folders, check_program, enter, link_bindings, run_program
from orch_node.rank.weight_inspection import objects_of

HIDDEN_FRAMES = (str(PROGRAM), str(Path(__file__).resolve().parent), runpy.__file__, "<frozen ")
EXIT = os._exit  # which report_exits() replaces for the script
LOCK_SECONDS = 1.0
CPP_FRAME = re.compile(
    r"^(?:frame #\d+: .*|<omitting python frames>|Exception raised from .* \(most recent call first\):)\n?",
    re.MULTILINE,
)
MESSAGE_PART = 600  # characters at each end of a long message
SHORT_FRAMES = 6  # of a long traceback
NO_HANDLERS = ("sys", "torch.distributed.distributed_c10d")  # modules whose sys.excepthook only prints
BACKENDS_THAT_EXIT = ("ccl", "mpi")  # their C++ exit handlers finalize MPI and end the process


def main(argv: list[str]) -> None:
    """Check this rank, join the group, run the script, and end the process."""
    faulthandler.enable()
    run_dir = Path(os.environ["ORCH_RUN_DIR"])
    layout = parse_layout((run_dir / files.LAYOUT).read_text())
    placement = layout.placement(int(os.environ["RANK"]))
    node = layout.entry(placement.node)
    run_environment = json.loads((run_dir / files.ENVIRONMENT).read_text())
    environment = checked_variables({**run_environment, **node.env, **placement.env}, run_environment)
    traces = StackTraces(placement.node)
    try:
        enter(layout.working_directory)
        link_bindings(run_dir, os.environ)
        add_module_folders(os.environ)
        cpus = checks.check_placement(placement)
        checks.check_node(node)
        checks.check_environment(environment)
        spec = read_spec(run_dir)
        checks.check_preload(environment.get("LD_PRELOAD", ""), checks.repair_command(node, spec))
        check_program(argv)
        checks.check_image_packages(os.environ.get(IMAGE_PACKAGES, ""), spec)
        gc.disable()  # torch's objects are excluded from garbage collection, which saves time
        torch = importlib.import_module("torch")
        gc.freeze()
        gc.enable()
        checks.check_torch(node, torch.__version__, spec)
        torch.set_num_threads(placement.threads)
        join(torch, layout, environment)
        checks.check_environment(environment)  # importing the backend may have changed it
        argv = computation.choose_precision(torch, layout, placement.rank, argv)
        computation.use_kernels(torch, layout, placement)
    except Exception as error:
        give_up(error)
    if layout.world_size > 1:
        set_mpi_variables(layout, placement, os.environ)
    child_processes.begin(placement.rank, layout.world_size, os.environ)
    joined = Joined(
        node=placement.node,
        pid=os.getpid(),
        cpus=tuple(cpus),
        threads=torch.get_num_threads(),
        backend=layout.backend,
        torch=str(torch.__version__),
    )
    send(joined)
    train(torch, layout, placement, argv, traces)


def train(torch: ModuleType, layout: RunLayout, placement: RankEntry, argv: list[str], traces: StackTraces) -> NoReturn:
    """Run the script in the process group with all measurements and checks, and end the process.

    Args:
        torch: the torch module.
        layout: of the run.
        placement: of this rank.
        argv: the script and its arguments.
        traces: writes stack traces if the run hangs.
    """
    run_dir = Path(os.environ["ORCH_RUN_DIR"])
    metrics = rank_metrics.begin(torch, run_dir, placement.rank, traces.check_handler)
    counts = metrics.heartbeat
    child_processes.begin_scans(placement.rank, layout.world_size, functools.partial(give_up, counts=counts))
    check = training_check.begin(torch)
    end_checks = [metrics.nan_losses.end, *compare_weights(torch, layout, placement, check.losses), check.check_end]
    frameworks.record_losses()
    frameworks.use_synced_data()

    def report_end() -> None:
        try:
            child_processes.check(placement.rank)
            for check_end in end_checks:
                check_end()
        except checks.RankError as error:
            give_up(error, counts)
        collectives = communication.collectives(torch)
        trained = metrics.trained or child_processes.mark_of(child_processes.TRAINED, placement.rank).exists()
        groups = communication.newest_groups(collectives)
        send(ScriptEnded(world_collectives=collectives[communication.WORLD], groups=groups, trained=trained))
        if placement.rank == 0:
            metrics.report_steps(in_all=True)
            if check.trained_in_fp32:
                computation.advise(metrics.steps)

    report_exits(report_end)
    if run_script(argv, counts):
        report_end()
        with contextlib.suppress(OSError):  # a full disk
            (run_dir / files.FINISHED_MARK.format(placement.rank)).touch(0o600)
    leave(torch, layout.backend, counts)


def checked_variables(settings: dict[str, str], planned: dict[str, str]) -> dict[str, str]:
    """Return what this process must have: what orch sets and the request's variables, which are in `planned`."""
    requested = {name: planned[name] for name in user_names(planned) if name in planned}
    overridden = {*user_names(os.environ), *json.loads(planned.get(DEFAULTS, "{}"))}.difference(requested)
    expected = {**settings, **requested}
    return {name: value for name, value in expected.items() if name not in {*overridden, USER_VARIABLES}}


def report_exits(report_end: Callable[[], None]) -> None:
    """Call `report_end` before os._exit(0) of the script in this process.

    Other ranks may wait for this one in a collective, and only this process knows its last one.
    """
    process = os.getpid()

    def exit_with_report(original: Callable[[int], NoReturn], status: int) -> None:
        # A signal handler may interrupt a thread that holds the lock; then the process ends unreported.
        if status == 0 and os.getpid() == process and communication.LOCK.acquire(timeout=LOCK_SECONDS):
            communication.LOCK.release()
            report_end()
        original(status)

    replace_function(os, "_exit", exit_with_report)


def run_script(argv: list[str], counts: Callable[[], Heartbeat]) -> bool:
    """Run the user's program as Python would; end this process if it fails.

    Returns:
        Whether this rank has finished its part of the run: False if it was preempted, and in a
        process that the script forked.
    """
    process = os.getpid()
    written = record_stderr()
    try:
        run_program(argv)
    except SystemExit as error:
        if error.code == EX_TEMPFAIL:
            # Ranks that have agreed leave the group as after a successful run, because backends take any other exit
            # code for a failure. A rank that ends by itself could wait there forever.
            if not preemption.AGREEMENT.agreed:
                flush()
                EXIT(EX_TEMPFAIL)
            Path(os.environ["ORCH_RUN_DIR"], files.PREEMPTED_MARK.format(int(os.environ["RANK"]))).touch(0o600)
            return False
        if error.code not in (None, 0):
            give_up(error, counts, reason_in("".join(written)))
    except BaseException as error:
        give_up(error, counts)
    return os.getpid() == process


def leave(torch: ModuleType, backend: str, counts: Callable[[], Heartbeat]) -> NoReturn:
    """End successfully: do what an interpreter does at exit, and destroy the group.

    The C++ exit handlers are skipped, also for plug-in backends, which may use gloo: gloo of torch
    often aborts there ("terminate called without an active exception"), even after
    destroy_process_group(), and a finished training would fail. The bindings of ccl end the
    process there when they finalize MPI. The interpreter is not finalized: a thread of torch that
    still releases a Python object would abort the process. PyDLL holds the interpreter's lock, so
    no Python thread runs during the exit handlers.

    Args:
        torch: the torch module.
        backend: of the run.
        counts: returns how far the rank is.
    """
    vars(threading)["_shutdown"]()
    with contextlib.suppress(BaseException):  # Python 3.9 raises the last error again, after it has printed it
        atexit._run_exitfuncs()  # of the script, too: its handlers may use the group, or destroy it
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()
    flush()
    if backend in BACKENDS_THAT_EXIT:
        send(replace(counts(), leaving=True))
        ctypes.PyDLL(None).exit(0)
    EXIT(0)


def flush() -> None:
    """Flush the loggers, the standard streams, and files that the script has left open."""
    logging.shutdown()
    for stream in (sys.stdout, sys.stderr, *objects_of((io.TextIOWrapper, io.BufferedWriter, io.BufferedRandom))):
        with contextlib.suppress(OSError, ValueError):  # closed by the script, or a full disk
            stream.flush()


def give_up(error: BaseException, counts: Callable[[], Heartbeat] | None = None, reason: str = "") -> NoReturn:
    """Report the error and end at once: an orderly exit could wait for ranks that wait for this one.

    Args:
        error: what ended the script.
        counts: returns how far the rank is, which identifies the collective that failed.
        reason: what the script wrote before it called sys.exit() with a number.
    """
    if counts:
        send(counts())
        error = child_processes.cause(error)
    if isinstance(error, SystemExit):
        code, text = 1, f"sys.exit({error.code!r})"
        if isinstance(error.code, int):
            code, text = error.code & 255 or 1, reason or text  # the system keeps 8 bits, which must not be 0
        else:
            write_error(str(error.code))
        send(Raised(text=text))
    else:
        code = 130 if isinstance(error, KeyboardInterrupt) else 1
        send(Raised(text=script_traceback(error, is_short=True)))  # before the log: its disk may be full
        if getattr(sys.excepthook, "__module__", "") in NO_HANDLERS or isinstance(error, checks.RankError):
            write_error(script_traceback(error))
        else:
            call_handler(error)
    flush()
    EXIT(code)


def call_handler(error: BaseException) -> None:
    """Call the script's handler of uncaught exceptions with the traceback of the script."""
    trace = error.__traceback__
    while trace and trace.tb_next and trace.tb_frame.f_code.co_filename.startswith(HIDDEN_FRAMES):
        trace = trace.tb_next
    with contextlib.suppress(BaseException):  # whatever it does, this rank ends
        sys.excepthook(type(error), error, trace)


def write_error(text: str) -> None:
    with contextlib.suppress(OSError, ValueError):  # as in flush()
        print(text, file=sys.stderr)


def script_traceback(error: BaseException, *, is_short: bool = False) -> str:
    """Return the traceback without frames of orch and runpy, or one line for a RankError.

    Args:
        error: the exception.
        is_short: whether to omit what does not fit into an event: C++ frames, and of long tracebacks all but the last
            exception, its innermost frames, and the first and last characters of its message.
    """
    if isinstance(error, checks.RankError):
        return f"error: {error}"
    exception = traceback.TracebackException(type(error), error, error.__traceback__)
    shown = [frame for frame in exception.stack if not frame.filename.startswith(HIDDEN_FRAMES)]
    exception.stack[:] = shown or exception.stack[-1:]
    text = "".join(exception.format()).rstrip()
    if not is_short or len(text := CPP_FRAME.sub("", text).rstrip()) < LONGEST_TEXT:
        return text
    message = CPP_FRAME.sub("", "".join(exception.format_exception_only())).rstrip()
    if len(message) > 2 * MESSAGE_PART:
        message = f"{message[:MESSAGE_PART]}\n[...]\n{message[-MESSAGE_PART:]}"
    return f"{TRACEBACK}\n{''.join(exception.stack.format()[-SHORT_FRAMES:])}{message}"
