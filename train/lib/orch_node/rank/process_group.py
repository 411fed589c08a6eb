"""Create the process group of a rank from the layout, and give it to the script.

It is created before any Hugging Face code runs: newer transformers and accelerate reject the name
`ccl`, but use an existing group as it is.
"""

from __future__ import annotations

import contextlib
import datetime
import functools
import importlib
import inspect
import itertools
import os
import re
import sys
import sysconfig
from collections.abc import Callable, Iterator, Mapping, MutableMapping
from pathlib import Path
from types import ModuleType
from typing import Any

from orch_node.bound_store import bind_stores
from orch_node.program import PROGRAM
from orch_node.protocol import files
from orch_node.protocol.layout import RankEntry, RunLayout
from orch_node.rank import child_processes, communication, frameworks, manual_updates
from orch_node.rank.checks import RankError, TrainingCheck, describe, has_separate_models
from orch_node.rank.hooks import replace_function, watch_steps, wrap
from orch_node.rank.weight_comparison import WeightComparison, largest_size
from orch_node.rank.weight_inspection import parameters

# A collective in a source that can average weights, as far as names show: local SGD does not communicate before its
# first steps.
AVERAGING = re.compile(
    r"average_parameters|ModelAverager|all_(reduce|gather)\w*\([^)\n]*(param|weight|\.data\b|\bp\b|state_dict|flat|vector)"
)
# A collective that may average weights, whatever its arguments are called.
EXCHANGE = re.compile(r"\ball_(reduce|gather)|\bdist(ributed)?\.(reduce|gather|broadcast|all_to_all)")
CPU_BACKENDS = ("ccl", "gloo", "mpi")


def join(torch: ModuleType, layout: RunLayout, planned: Mapping[str, str]) -> None:
    """Import the backend's module and create the default process group.

    A single rank gets a group, too, so that a script may query its rank or reduce, unless torch was
    built without distributed.

    Args:
        torch: the torch module.
        layout: of the run.
        planned: the variables that orch has set.
    """
    if layout.backend_module:
        module = importlib.import_module(layout.backend_module)
        if hasattr(module, "expect_settings"):  # our bindings: do not warn about these variables
            module.expect_settings(planned)
    distributed = torch.distributed
    if layout.world_size == 1 and not distributed.is_available():
        return
    check_backend(torch, layout.backend)
    # The script may create further groups.
    bind_stores(importlib.import_module("torch.distributed.rendezvous"))
    communication.begin(torch)
    if "gloo" in layout.backend:
        # Without a barrier, a rank that ends at once breaks the connections that others are making.
        os.environ.setdefault("TORCH_DIST_INIT_BARRIER", "1")
    if "nccl" in layout.backend:
        # The default of newer torch. Older ones record nothing, and then the collectives that have ended are unknown.
        os.environ.setdefault("TORCH_NCCL_TRACE_BUFFER_SIZE", "2000")
    timeout = datetime.timedelta(seconds=layout.timeout_seconds)
    distributed.init_process_group(layout.backend, init_method="env://", timeout=timeout)
    adopt_group(distributed, layout.backend, timeout)
    frameworks.adapt_to_cpus(torch)
    frameworks.name_backend_for_libraries()
    frameworks.adopt_timeouts(functools.partial(set_timeout, distributed))
    process = os.getpid()
    # What the constructor of DistributedDataParallel calls: warnings in that itself shall name the line of the script.
    joinable = importlib.import_module("torch.distributed.algorithms.join").Joinable
    wrap(joinable, "__init__", lambda *_, **__: child_processes.check_process(process))


def check_backend(torch: ModuleType, backend: str) -> None:
    """Raise RankError if torch was built without the backend, or one of several: gloo, mpi, nccl, ucc or xccl."""
    for name in (part.rpartition(":")[2] for part in backend.split(",")):
        is_available = getattr(torch.distributed, f"is_{name}_available", None)
        if is_available is not None and not is_available():
            raise RankError(describe("no-backend", version=torch.__version__, name=name))


def adopt_group(distributed: ModuleType, run_backend: str, run_timeout: datetime.timedelta) -> None:
    """Make init_process_group() of the script return the existing group, with a note in the log.

    If the script has destroyed that group, it gets a new one with the run's backend. So it does at its first call if
    the group, which has not communicated yet, lacks the device or the options that the script requests. The new group
    uses the store of the first one: with a new store, a rank could connect to the server of the old
    one while that shuts down.
    """
    signature = inspect.signature(distributed.init_process_group)
    store = distributed.distributed_c10d._get_default_store()
    rank, world_size = distributed.get_rank(), distributed.get_world_size()
    groups, calls = itertools.count(1), itertools.count()
    process = os.getpid()
    reports_gloo = [False]  # whether the script has requested gloo

    # Libraries choose what they do by names that they know, and ccl is not among them. torch itself uses the function
    # of distributed_c10d, which returns the true name.
    def get_backend(original: Callable[..., str], *args: Any, **kwargs: Any) -> str:
        name = original(*args, **kwargs)
        return "gloo" if reports_gloo[0] and name == run_backend else name

    def init_process_group(original: Callable[..., None], *args: Any, **kwargs: Any) -> None:
        child_processes.check_process(process)
        requested = signature.bind(*args, **kwargs).arguments
        backend = group_backend(run_backend, requested)
        if next(calls) == 0 and distributed.is_initialized() and needs_new_group(run_backend, requested):
            distributed.destroy_process_group()
        exists = distributed.is_initialized()
        name, values = "existing-group" if exists else "new-group", {"requested": requested.get("backend") or "default"}
        # One write, because without buffering print() writes the end of a line by itself, after other output.
        sys.stderr.write(f"orch: {describe(name, **values, backend=backend)}\n")
        # For the CPU, as in "gloo" and in "cpu:gloo,cuda:nccl".
        names_gloo = not {"gloo", "cpu:gloo"}.isdisjoint(str(requested.get("backend")).lower().split(","))
        reports_gloo[:] = [names_gloo and "nccl" not in backend]
        if not exists:
            timeout = requested.get("timeout") or run_timeout
            options = {**requested, "backend": backend, "timeout": timeout}
            has_all_ranks = requested.get("world_size", -1) in (-1, None, world_size)
            if has_all_ranks and requested.get("store") is None:
                prefix_store = distributed.PrefixStore(f"orch/group-{next(groups)}", store)
                options |= {"store": prefix_store, "rank": rank, "world_size": world_size}
                options.pop("init_method", None)
            original(**options)
            return
        for key, actual in (("world_size", world_size), ("rank", rank)):
            if requested.get(key, -1) not in (-1, None, actual):
                raise ValueError(f"the script requests {key}={requested[key]}, but orch has started it with {actual}.")
        if requested.get("timeout") is not None:
            set_timeout(distributed, requested["timeout"])

    replace_function(distributed, "get_backend", get_backend)
    replace_function(distributed, "init_process_group", init_process_group, distributed.distributed_c10d)


def group_backend(backend: str, requested: Mapping[str, Any]) -> str:
    """Return the backend of a script's group: that of the run, or all those for devices that the script lists with it.

    Scripts on GPUs list one for CPU tensors, too: `cpu:gloo,cuda:nccl`.
    """
    names = str(requested.get("backend") or "").lower()
    listed = [part.rpartition(":")[2] for part in names.split(",") if ":" in part]
    return names if backend not in CPU_BACKENDS and backend in listed else backend


def needs_new_group(backend: str, requested: Mapping[str, Any]) -> bool:
    """Return whether orch's group on the run's backend lacks a device or options that a script on GPUs requests."""
    if backend in CPU_BACKENDS:
        return False
    has_options = any(requested.get(name) is not None for name in ("device_id", "pg_options"))
    return has_options or group_backend(backend, requested) != backend


def set_timeout(distributed: ModuleType, timeout: datetime.timedelta) -> None:
    """Set the timeout that the script requests on the default group, if there is one."""
    if not distributed.is_initialized():  # the script has destroyed it and will create a new one
        return
    torch = importlib.import_module("torch")
    group = distributed.distributed_c10d._get_default_group()
    for backend in communication.backends(torch, group):
        if hasattr(backend, "_set_default_timeout"):
            backend._set_default_timeout(timeout)
        else:
            print(describe("fixed-timeout", seconds=timeout.total_seconds()), file=sys.stderr)
    distributed.distributed_c10d._get_default_store().set_timeout(timeout)


class CommunicationCheck(TrainingCheck):
    """Stops a script at its first optimizer step if its ranks train alone.

    They do if a framework has another rank or world size than the run, or if the ranks have not
    communicated at all. A script that averages weights (local SGD) may begin to communicate later. If it is not
    certain that it does, its weights have to start equal, and it has to exchange tensors as large as they are.
    """

    name = "check of the communication"

    def __init__(self, layout: RunLayout, placement: RankEntry, comparison: WeightComparison) -> None:
        self.layout, self.placement, self.comparison = layout, placement, comparison
        self.torch, self.pid = comparison.torch, comparison.pid
        self.initial_operations = communication.operations(self.torch)
        self.size = 0  # of the largest weight, which the script has to exchange

    def before_step(self, optimizer: Any, *_: Any) -> None:
        if self.finished:
            return
        self.finish()  # before a forked child may inherit the check, which holds for it, too
        frameworks.check_numbers(self.layout, self.placement)
        if self.is_alone():
            self.error = self.describe_error()
            sources = list(script_sources())
            if not any(map(AVERAGING.search, sources)):
                self.comparison.unequal_start_error = self.error
                self.size = largest_size(parameters([optimizer]))
                if not any(map(EXCHANGE.search, sources)):
                    if os.getpid() != self.pid:  # its parent may ignore how it ends
                        child_processes.write_mark(child_processes.REFUSED, self.placement.rank, str(self.error))
                    raise self.error

    def is_alone(self) -> bool:
        """Return whether the ranks have certainly not communicated."""
        # The operations of groups that the script has created may not be counted.
        has_script_groups = len(communication.distributed_world(self.torch).pg_map) > 1
        is_counted = not has_script_groups and not communication.uses_rpc(self.torch)
        return is_counted and self.torch.distributed.is_initialized() and not self.has_communicated()

    def describe_error(self) -> RankError:
        return RankError(describe("no-communication", hint=frameworks.hint(self.layout, self.placement)))

    def has_communicated(self) -> bool:
        return communication.operations(self.torch) != self.initial_operations or has_separate_models()

    def check_end(self) -> None:
        """Check at the end of the script that the ranks have communicated more than numbers for a log.

        Raises:
            RankError: if they have not, and this rank or a process that it has started has trained.
        """
        if child_processes.mark_of(child_processes.TRAINED, self.placement.rank).exists() and self.is_alone():
            raise self.describe_error()
        counts, compared = communication.COUNTS, self.comparison
        # The reductions of a DistributedDataParallel are not measured.
        has_averaged = compared.averages or compared.has_shared or counts.largest_exchange >= self.size
        is_unmeasured = counts.point_to_point or counts.remote_calls or has_separate_models()
        if not (self.has_communicated() and (has_averaged or is_unmeasured)):
            super().check_end()


def script_sources() -> Iterator[str]:
    """Yield the sources of the script and of its modules, without packages and without orch's modules."""
    packages = (sysconfig.get_path("stdlib"), sysconfig.get_path("platstdlib"), str(PROGRAM.parent))
    for module in list(sys.modules.values()):
        path = getattr(module, "__file__", None) or ""
        if path.endswith(".py") and "site-packages" not in path and not path.startswith(packages):
            with contextlib.suppress(OSError):
                yield Path(path).read_text(errors="replace")


def compare_weights(
    torch: ModuleType, layout: RunLayout, placement: RankEntry, losses: list[float]
) -> list[Callable[[], None]]:
    """Compare the weights of all ranks in the first steps.

    Args:
        torch: the torch module.
        layout: of the run.
        placement: of this rank.
        losses: those of the first steps, to which later ones are appended.

    Returns:
        Functions that check at the end of the script whether this rank has trained alone; they raise RankError.
    """
    if layout.world_size == 1:
        return []
    restarts = int(os.environ.get("ORCH_ATTEMPT", "1")) - 1 + int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"))
    store = torch.distributed.distributed_c10d._get_default_store()
    equal_mark = Path(os.environ["ORCH_RUN_DIR"], files.EQUAL_WEIGHTS)
    hint = functools.partial(frameworks.hint, layout, placement)
    comparison = WeightComparison(torch, placement.rank, store, restarts > 0, equal_mark, hint, losses)
    communication_check = CommunicationCheck(layout, placement, comparison)
    if not watch_steps(communication_check.before_step):
        if placement.rank == 0:
            print(f"orch: {describe('no-hooks')}", file=sys.stderr)
        return []
    watch_steps(comparison.before_step, comparison.after_step)
    return [comparison.check_end, manual_updates.begin(torch, comparison).check_end, communication_check.check_end]


def set_mpi_variables(layout: RunLayout, placement: RankEntry, environment: MutableMapping[str, str]) -> None:
    """Set the variables of MPI launchers that some scripts read, unless the launcher has set them.

    Without them such a script takes every rank for rank 0 of 1. MPI itself must not see them before it is initialized.
    """
    for number, names in (
        (placement.rank, ("PMI_RANK", "OMPI_COMM_WORLD_RANK")),
        (layout.world_size, ("PMI_SIZE", "OMPI_COMM_WORLD_SIZE")),
        (placement.local_rank, ("MPI_LOCALRANKID", "OMPI_COMM_WORLD_LOCAL_RANK")),
        (placement.local_world_size, ("MPI_LOCALNRANKS", "OMPI_COMM_WORLD_LOCAL_SIZE")),
    ):
        for name in names:
            environment.setdefault(name, str(number))
