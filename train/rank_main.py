"""The training process of one rank: joins the process group, then runs the script as __main__.

The group is made before any Hugging Face code runs, because newer transformers and accelerate
refuse the name `ccl`; they use a group that already exists as it is.
"""

from __future__ import annotations

import atexit
import contextlib
import datetime
import faulthandler
import importlib
import json
import logging
import os
import re
import runpy
import signal
import socket
import sys
import threading
import traceback
from pathlib import Path
from types import ModuleType
from typing import Any, NoReturn

import rank_metrics
import rank_pulse
from containers import read_spec
from rank_events import report

ENDING_THEMSELVES = ("ccl", "mpi")
TRAIN_FOLDER = str(Path(__file__).resolve().parent)


class RankError(Exception):
    """A reason not to start training, in one sentence."""


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


def check_place(place: dict[str, Any]) -> list[int]:
    """The CPUs of this process, which must be those of the plan.

    Read before torch is imported: an OpenMP runtime may narrow the main thread further.
    """
    planned, actual = sorted(place["cpus"]), allowed_cpus()
    if planned and planned != actual:
        raise RankError(
            f"rank {place['rank']} should run on CPUs {planned}, but /proc/self/status "
            f"allows {actual}."
        )
    return actual


def check_node(node: dict[str, Any]) -> None:
    """This is the planned node, and its interface still has the planned address."""
    host, cure = socket.gethostname(), "Run `orch provision` to record the node as it is now."
    if host != node["host"]:
        raise RankError(
            f"this rank is planned for {node['name']}, whose host name is {node['host']}, but "
            f"runs on {host}. {cure}"
        )
    if node["interface"] is None:
        return
    present = [name for _, name in socket.if_nameindex()]
    if node["interface"] not in present:
        raise RankError(
            f"{node['name']} has no interface {node['interface']}, only {', '.join(present)}. "
            + cure
        )
    family = socket.AF_INET6 if ":" in node["address"] else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        try:
            probe.bind((node["address"], 0))
        except OSError as error:
            raise RankError(
                f"{node['name']} does not have the address {node['address']} any more "
                f"({error.strerror}). {cure}"
            ) from None


def check_torch(node: dict[str, Any], version: str, spec: dict[str, Any] | None) -> None:
    """Another version on one node can hang the others, or train wrongly. An image may well have
    another build of the same version."""
    planned = node.get("torch")
    if not planned or planned == version:
        return
    if spec is None:
        raise RankError(
            f"{node['name']} has torch {version}, and was planned with {planned}. "
            "Run `orch provision`."
        )
    if planned.partition("+")[0] != version.partition("+")[0]:
        raise RankError(
            f"image {spec['image']} has torch {version}, and was planned with {planned}. "
            "`orch image build` makes one with the stack's."
        )


def check_environment(planned: dict[str, str]) -> None:
    """What the plan says of the environment is what this process has."""
    for name, value in planned.items():
        # Where to meet is proven by meeting there, and may be another place at another attempt.
        if not name.startswith("MASTER_") and os.environ.get(name) != value:
            raise RankError(
                f"the variable {name} is {os.environ.get(name)!r}, and was planned as {value!r}."
            )


def allowed_cpus() -> list[int]:
    """The CPUs that the kernel lets this process use, as /proc/self/status lists them."""
    text = Path("/proc/self/status").read_text()
    match = re.search(r"^Cpus_allowed_list:\s*(\S+)$", text, re.MULTILINE)
    cpus: list[int] = []
    for part in match.group(1).split(",") if match else []:
        first, _, last = part.partition("-")
        cpus.extend(range(int(first), int(last or first) + 1))
    return cpus


def check_preload() -> None:
    """Every library of LD_PRELOAD is mapped; the loader only warns about one it cannot find."""
    mapped = Path("/proc/self/maps").read_text()
    for library in os.environ.get("LD_PRELOAD", "").split(":"):
        if library and os.path.realpath(library) not in mapped:
            raise RankError(
                f"LD_PRELOAD names {library}, but it is not loaded. "
                "Run `orch provision` to repair the node."
            )


def join(torch: ModuleType, layout: dict[str, Any]) -> None:
    """Import what the backend needs and make the default process group, if there are peers."""
    if layout["backend_module"]:
        importlib.import_module(layout["backend_module"])
    if layout["world_size"] == 1:
        return
    distributed = torch.distributed
    check_backend(torch, layout["backend"])
    timeout = datetime.timedelta(seconds=layout["timeout_seconds"])
    distributed.init_process_group(layout["backend"], init_method="env://", timeout=timeout)
    adopt_group(distributed, layout["backend"])
    forbid_training_alone(torch)


def check_backend(torch: ModuleType, backend: str) -> None:
    """Of those that torch may have been built without: gloo, mpi, nccl, ucc, xccl."""
    there = getattr(torch.distributed, f"is_{backend}_available", None)
    if there is not None and not there():
        raise RankError(
            f"torch {torch.__version__} was built without the backend {backend}. Take --backend "
            "ccl or gloo, or a torch that has it."
        )


def adopt_group(distributed: ModuleType, backend: str) -> None:
    """A script's own init_process_group() gets the group that exists, and a note in the log."""
    original = distributed.init_process_group

    def init_process_group(requested: str | None = None, *args: Any, **kwargs: Any) -> None:
        if not distributed.is_initialized():
            original(requested, *args, **kwargs)
            return
        world_size, rank = kwargs.get("world_size", -1), kwargs.get("rank", -1)
        if world_size not in (-1, distributed.get_world_size()):
            raise ValueError(
                f"the script asks for world_size={world_size}, this run has "
                f"{distributed.get_world_size()} ranks."
            )
        if rank not in (-1, distributed.get_rank()):
            raise ValueError(f"the script asks for rank={rank} on rank {distributed.get_rank()}.")
        print(
            f"orch: the script asks for a process group ({requested or 'default'}); it gets the "
            f"one on {backend} that orch made.",
            file=sys.stderr,
        )

    distributed.init_process_group = init_process_group
    distributed.distributed_c10d.init_process_group = init_process_group


def forbid_training_alone(torch: ModuleType) -> None:
    """Stop a script whose optimizer steps although no collective ever ran: each rank is alone."""
    group = torch.distributed.distributed_c10d._get_default_group()
    operations = group._get_backend(torch.device("cpu"))._get_sequence_number_for_group
    at_start = operations()

    def check(*_: Any) -> None:
        handle.remove()
        alone = operations() == at_start
        if alone and torch.distributed.is_initialized() and not other_groups(torch):
            raise RankError(
                "the script trains alone on every rank: it made an optimizer step before any "
                "collective operation. Wrap the model in DistributedDataParallel, use Trainer or "
                "Accelerator, or run it with --nodes 1 --ppn 1."
            )

    optimizer = importlib.import_module("torch.optim.optimizer")
    handle = optimizer.register_optimizer_step_pre_hook(check)


def other_groups(torch: ModuleType) -> bool:
    """Whether the script made process groups of its own, which count their operations apart."""
    return len(torch.distributed.distributed_c10d._world.pg_map) > 1


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
    """The traceback without the frames of this file and of runpy; a RankError is one line."""
    if isinstance(error, RankError):
        return f"error: {error}"
    ours = (__file__, runpy.__file__, "<frozen runpy>")
    frame = error.__traceback__
    while frame and frame.tb_next and frame.tb_frame.f_code.co_filename in ours:
        frame = frame.tb_next
    return "".join(traceback.format_exception(type(error), error, frame)).rstrip()


if __name__ == "__main__":
    main(sys.argv[1:])
