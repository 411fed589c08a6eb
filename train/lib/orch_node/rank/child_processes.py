"""Notice processes of a script that form another process group than that of the ranks.

A script that starts processes (mp.spawn, notebook_launcher, torchrun) starts them on every rank: each rank would train
a separate model. Forked children inherit what process_group.py replaces; other Python processes import
orch_node/child_python/sitecustomize.py. Those that do not, because the script gives them another environment, are
recognized from outside by the threads of torch's process groups.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import sys
import threading
import time
from collections.abc import Callable, MutableMapping
from pathlib import Path
from types import ModuleType
from typing import Any, NoReturn

from orch_node.agent import processes
from orch_node.protocol import files
from orch_node.rank.checks import RankError, describe, has_separate_models
from orch_node.rank.hooks import after_import, watch_steps, wrap, wrap_later

SCAN_SECONDS = 0.5  # importing torch takes longer
# While a process that does not import sitecustomize.py runs: the group of a short training exists for about 0.3 s.
CLOSE_SCAN_SECONDS = 0.05
# Threads of torch 2.5 and newer, in the process of a group that serves its store, in torchrun, and in groups of gloo.
GROUP_THREADS = (b"pt_tcpstore", b"pt_gloo")
LAUNCHED_MARK = b"TORCHELASTIC_RUN_ID="  # in the environment of torchrun's processes
END_SECONDS = 5.0
REFUSED, TRAINED = "group", "trained"  # kinds of marks
PARENT = "ORCH_PARENT_RANK"  # "RANK WORLD_SIZE" of the rank that started a process
FOLDER = Path(__file__).resolve().parent.parent / "child_python"


def begin(rank: int, world_size: int, environment: MutableMapping[str, str]) -> None:
    """Watch the processes that this one starts from now on."""
    for kind in (REFUSED, TRAINED):
        mark_of(kind, rank).unlink(missing_ok=True)
    environment[PARENT] = f"{rank} {world_size}"
    # The agent of torchrun in a rank itself, as in notebook_launcher(): its port is in use on a shared node.
    wrap_later("torch.distributed.launcher.api", "launch_agent", lambda *_, **__: check_process(0))
    folders = environment.get("PYTHONPATH", "")
    if str(FOLDER) not in folders.split(os.pathsep):
        environment["PYTHONPATH"] = f"{FOLDER}{os.pathsep}{folders}" if folders else str(FOLDER)


def watch() -> None:
    """Watch this process, which a rank has started, if it imports parts of torch."""
    if PARENT in os.environ:
        wrap_later("torch.distributed.distributed_c10d", "init_process_group", refuse_groups)
        after_import("torch.optim.optimizer", record_training)


def refuse_groups(*_: Any, **__: Any) -> None:
    """Raise RankError when a process that a rank has started creates a process group."""
    if parent_size() > 1 and not has_separate_models() and not saves_checkpoint():
        refuse_group()


def saves_checkpoint() -> bool:
    """Return whether this is a process of torch's async_save(): one of each rank, which form one group."""
    frame = sys._getframe()
    while frame.f_back and not frame.f_globals.get("__name__", "").startswith("torch.distributed.checkpoint."):
        frame = frame.f_back
    return frame.f_back is not None


def begin_scans(rank: int, world_size: int, end: Callable[[RankError], object]) -> None:
    """Start a daemon thread that ends this rank if a process below it that is not watched has a process group."""
    if world_size > 1:
        refuse_replacement(world_size)
        arguments = (rank, describe("child-group", size=world_size), end)
        threading.Thread(target=scan_processes, args=arguments, name="orch-children", daemon=True).start()


def refuse_replacement(world_size: int) -> None:
    """Make the functions os.exec*() fail in this process, but not in its children."""
    process = os.getpid()

    def check_replacement(*_: Any) -> None:
        if os.getpid() == process and not has_separate_models():
            raise RankError(describe("replaced-process", size=world_size))

    for name in ("execv", "execve"):  # the others call these
        wrap(os, name, check_replacement)


def scan_processes(rank: int, message: str, end: Callable[[RankError], object]) -> None:
    """Look for process groups below this process until there is one; then end its processes, and call `end`."""
    unwatched: list[Path] = []
    while has_separate_models() or not any(map(has_group, unwatched)):
        time.sleep(CLOSE_SCAN_SECONDS if unwatched else SCAN_SECONDS)
        unwatched = unwatched_processes()
    write_mark(REFUSED, rank, message)
    processes.terminate(processes.descendants, term_seconds=0.0, seconds=END_SECONDS)
    end(RankError(message))


def unwatched_processes() -> list[Path]:
    """Return the folders in /proc of the Python processes below this one that do not import sitecustomize.py."""
    own_folder = processes.PROC / str(os.getpid())
    own_environment = (own_folder / "environ").read_bytes()
    folders, unwatched = children(own_folder), []
    while folders:
        folder = folders.pop()
        folders += children(folder)
        with contextlib.suppress(OSError):  # it has ended, or belongs to another user
            environment = (folder / "environ").read_bytes()
            # A forked child has the environment with which this process was started.
            is_watched = environment == own_environment or os.fsencode(FOLDER) in environment
            if not is_watched and b"python" in os.readlink(os.fsencode(folder / "exe")):
                unwatched.append(folder)
    return unwatched


def children(folder: Path) -> list[Path]:
    """Return the folders in /proc of the processes that a process has started."""
    pids: list[str] = []
    with contextlib.suppress(OSError):
        for task in (folder / "task").iterdir():
            pids += (task / "children").read_text().split()
    return [processes.PROC / pid for pid in pids]


def has_group(folder: Path) -> bool:
    """Return whether a process has a process group of torch, or is one of torchrun's."""
    with contextlib.suppress(OSError):
        if LAUNCHED_MARK in (folder / "environ").read_bytes() and "TORCHELASTIC_RUN_ID" not in os.environ:
            return True
        return any((task / "comm").read_bytes().startswith(GROUP_THREADS) for task in (folder / "task").iterdir())
    return False


def record_training(_: ModuleType) -> None:
    """Record the first optimizer step of a process that a rank has started."""
    steps = itertools.count()

    def record(*_: Any) -> None:
        if next(steps) == 0:
            write_mark(TRAINED, parent_rank())

    watch_steps(after=record)


def check_process(process: int) -> None:
    """Raise RankError if this process is not the given one, and was started in a run of several ranks."""
    if os.getpid() != process and parent_size() > 1:
        refuse_group()


def refuse_group() -> NoReturn:
    """Raise RankError, and record that for the rank, which may ignore how its processes end."""
    script = sys.modules.get("__mp_main__")
    # While multiprocessing imports the parent's script under this name, it is not the main module yet.
    is_imported_again = getattr(script, "__name__", "") == "__mp_main__" and script is not sys.modules["__main__"]
    message = describe("imported-again" if is_imported_again else "child-group", size=parent_size())
    write_mark(REFUSED, parent_rank(), message)
    raise RankError(message)


def check(rank: int) -> None:
    """Check that no process of this rank has tried to create a process group.

    Raises:
        RankError: if one has.
    """
    if (mark := mark_of(REFUSED, rank)).exists():
        raise RankError(mark.read_text())


def cause(error: BaseException) -> BaseException:
    """Return why a process of this rank was refused a process group if one was, otherwise the error of the rank."""
    with contextlib.suppress(LookupError, OSError):
        return RankError(mark_of(REFUSED, parent_rank()).read_text())
    return error


def parent_rank() -> int:
    return int(os.environ[PARENT].split()[0])


def parent_size() -> int:
    """Return the number of ranks of the run of the rank that started this process, 1 if there is none."""
    return int(os.environ.get(PARENT, "0 1").split()[1])


def mark_of(kind: str, rank: int) -> Path:
    """Return the file that processes of a rank write: REFUSED with the reason to refuse a process group, or TRAINED."""
    return Path(os.environ["ORCH_RUN_DIR"], files.RANKS, f".child-{kind}-{rank}")


def write_mark(kind: str, rank: int, text: str = "") -> None:
    with contextlib.suppress(LookupError, OSError):  # a variable that the script has deleted; a full disk
        mark_of(kind, rank).write_text(text)
        mark_of(kind, rank).chmod(0o600)
