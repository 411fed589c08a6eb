"""The training process of one rank: joins the process group, then runs the script as __main__."""

from __future__ import annotations

import atexit
import contextlib
import faulthandler
import importlib
import json
import logging
import os
import runpy
import signal
import sys
import threading
import traceback
from pathlib import Path
from types import ModuleType
from typing import NoReturn

import rank_checks
import rank_group
import rank_metrics
import rank_pulse
from containers import read_spec
from rank_checks import (
    RankError,
    check_environment,
    check_node,
    check_place,
    check_preload,
    check_torch,
)
from rank_events import report
from rank_group import join

ENDING_THEMSELVES = ("ccl", "mpi")
TRAIN_FOLDER = str(Path(__file__).resolve().parent)


def main(argv: list[str]) -> None:
    faulthandler.enable()
    faulthandler.register(signal.SIGUSR1, all_threads=True)  # stacks on request
    run_dir = Path(os.environ["ORCH_RUN_DIR"])
    layout = json.loads((run_dir / "layout.json").read_text())
    place = layout["ranks"][int(os.environ["RANK"])]
    node = next(node for node in layout["nodes"] if node["name"] == place["node"])
    environment = {**json.loads((run_dir / "env.json").read_text()), **node["env"], **place["env"]}
    try:
        cpus = check_place(place)
        check_node(node)
        check_environment(environment)
        check_preload()
        torch = importlib.import_module("torch")
        check_torch(node, torch.__version__, read_spec(run_dir))
        torch.set_num_threads(place["threads"])
        join(torch, layout)
        check_environment(environment)  # the backend has been imported, and has not changed it
    except Exception as error:
        give_up(error)
    report(
        "joined",
        node=place["node"],
        pid=os.getpid(),
        cpus=cpus,
        threads=torch.get_num_threads(),
        backend=layout["backend"],
        torch=torch.__version__,
    )
    metrics = rank_metrics.begin(torch, run_dir / "ranks", place["rank"])
    rank_pulse.begin(torch, lambda: metrics.steps)
    run_script(argv)
    leave(torch, layout["backend"])


def run_script(argv: list[str]) -> None:
    """Run the script as `python SCRIPT ARGS` would; ends this process if it fails."""
    sys.argv = argv
    sys.path[0] = str(Path(argv[0]).resolve().parent)
    sys.path.append(TRAIN_FOLDER)
    try:
        runpy.run_path(argv[0], run_name="__main__")
    except SystemExit as exit_:
        if exit_.code not in (None, 0):
            give_up(exit_)
    except BaseException as error:
        give_up(error)


def leave(torch: ModuleType, backend: str) -> NoReturn:
    """End well: the group first, then what an interpreter does at exit.

    Stock gloo often aborts in the C++ teardown ("terminate called without an active exception"),
    also after destroy_process_group(), and would turn a finished training into a failed one; so
    that is left out, also for plug-ins, which may be gloo inside. The bindings of ccl end the
    process themselves there, when MPI is finalized.
    """
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()
    if backend in ENDING_THEMSELVES:
        raise SystemExit(0)
    threading._shutdown()
    atexit._run_exitfuncs()
    flush()
    os._exit(0)


def flush() -> None:
    logging.shutdown()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):  # closed by the script, or a full disk
            stream.flush()


def give_up(error: BaseException) -> NoReturn:
    """Tell why and end at once: an orderly exit could wait for ranks that wait for this one."""
    if isinstance(error, SystemExit):
        code = error.code if isinstance(error.code, int) else 1
        text = f"sys.exit({error.code!r})"
        if not isinstance(error.code, int):
            print(error.code, file=sys.stderr)
    else:
        code = 130 if isinstance(error, KeyboardInterrupt) else 1
        text = own_traceback(error)
        print(text, file=sys.stderr)
    report("exception", text=text)
    flush()
    os._exit(code)


def own_traceback(error: BaseException) -> str:
    """The traceback without our own frames and those of runpy; a RankError is one line."""
    if isinstance(error, RankError):
        return f"error: {error}"
    ours = (__file__, rank_checks.__file__, rank_group.__file__, runpy.__file__, "<frozen runpy>")
    frame = error.__traceback__
    while frame and frame.tb_next and frame.tb_frame.f_code.co_filename in ours:
        frame = frame.tb_next
    return "".join(traceback.format_exception(type(error), error, frame)).rstrip()


if __name__ == "__main__":
    main(sys.argv[1:])
