"""Adapt Accelerate, the Trainer of transformers, Lightning and `datasets` in a script to the run."""

from __future__ import annotations

import datetime
import logging
import os
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

from orch_node import program
from orch_node.events import note
from orch_node.protocol.layout import RankEntry, RunLayout
from orch_node.rank.checks import RankError, describe
from orch_node.rank.environment import HUB, HUB_CACHES, OFFLINE
from orch_node.rank.hooks import after_import, replace_function, wrap_later
from orch_node.rank.weight_inspection import objects_of

# What Accelerate and the Trainer pass if the user has chosen no timeout.
DEFAULT_TIMEOUT = datetime.timedelta(minutes=30)
STRATEGY_PACKAGES = ("lightning.pytorch", "lightning.fabric", "pytorch_lightning", "lightning_fabric")
LIGHTNING_PACKAGES = ("lightning", "pytorch_lightning", "lightning_fabric")
# Logger -> a part of its message. torchao, which transformers imports, has libraries for CUDA only
# and registers constants that newer releases of torch register themselves.
GPU_MESSAGES = {
    "torchao": "Failed to load ",
    "torch.utils._pytree": "is an Enum subclass and is now natively supported",
}
Numbers = tuple[int, int]  # the rank and the number of ranks that a framework works with


def adapt_to_cpus(torch: ModuleType) -> None:
    """Make Accelerate and the Trainer use the CPU on a machine without accelerators; otherwise they train alone there.

    Messages that packages of the stack log when they are imported without a GPU are dropped.
    """
    if not has_accelerator(torch):
        os.environ.setdefault("ACCELERATE_USE_CPU", "true")
        for name, text in GPU_MESSAGES.items():
            logging.getLogger(name).addFilter(lambda record, text=text: text not in record.getMessage())  # type: ignore[misc]


def has_accelerator(torch: ModuleType) -> bool:
    """Return whether torch can use a GPU or another accelerator."""
    if hasattr(torch, "accelerator"):
        return bool(torch.accelerator.is_available())
    modules = (getattr(torch, name, None) for name in ("cuda", "xpu"))  # torch before 2.6
    return any(module is not None and module.is_available() for module in modules)


def check_numbers(layout: RunLayout, placement: RankEntry) -> None:
    """Check that the frameworks of this process have the rank and world size of the run.

    Raises:
        RankError: if one of them trains as another rank or with another number of ranks.
    """
    expected = (placement.rank, layout.world_size)
    for framework, numbers in (("Accelerate", accelerate_numbers()), ("Lightning", lightning_numbers())):
        if numbers and expected not in numbers:
            values = {"framework": framework, "numbers": numbers[0], "expected": expected}
            raise RankError(describe("wrong-numbers", **values, hint=hint(layout, placement)))


def accelerate_numbers() -> list[Numbers]:
    """Return the numbers of Accelerate, which the Trainer of transformers uses, too."""
    state = getattr(sys.modules.get("accelerate.state"), "PartialState", None)
    shared = dict(getattr(state, "_shared_state", {}))
    return [(shared["process_index"], shared["num_processes"])] if "num_processes" in shared else []


def lightning_numbers() -> list[Numbers]:
    """Return the numbers of each existing Trainer and Fabric of Lightning."""
    modules = filter(None, (sys.modules.get(f"{package}.strategies") for package in STRATEGY_PACKAGES))
    strategies = objects_of(tuple(module.Strategy for module in modules if hasattr(module, "Strategy")))
    numbers = [(getattr(value, "global_rank", 0), getattr(value, "world_size", 1)) for value in strategies]
    return [(rank, size) for rank, size in numbers if isinstance(rank, int) and isinstance(size, int)]


def hint(layout: RunLayout, placement: RankEntry) -> str:
    """Return what to change in a script that trains alone on each rank, by the frameworks that it imports."""
    torch = sys.modules.get("torch")
    kind = "gpu" if torch is not None and has_accelerator(torch) else "cpu"
    ways = []
    if not sys.modules.keys().isdisjoint(LIGHTNING_PACKAGES):
        options = f"devices={placement.local_world_size}, num_nodes={len(layout.node_names)} and strategy='ddp'"
        ways.append(f"pass accelerator='{kind}', {options} to Lightning's Trainer or Fabric (then fabric.launch())")
    if "accelerate" in sys.modules:
        arguments = "cpu=True" if kind == "cpu" else ""
        ways.append(f"pass the model and the optimizer to the prepare() of an Accelerator({arguments})")
        ways += ["pass use_cpu=True to TrainingArguments()"] if kind == "cpu" else []
    text = ", or ".join([*ways, "wrap the model in DistributedDataParallel"])
    return f"{text[0].upper()}{text[1:]}"


def adopt_timeouts(set_timeout: Callable[[datetime.timedelta], None]) -> None:
    """Apply the timeouts that a script passes to its framework to the existing group.

    Accelerate, the Trainer (--ddp_timeout) and the strategies of Lightning ignore them if a group
    exists; the Trainer does so on every CPU.
    """

    def adopt(*_: Any, timeout: datetime.timedelta | None = None, **__: Any) -> None:
        if timeout is not None and timeout != DEFAULT_TIMEOUT:
            set_timeout(timeout)

    def adopt_argument(arguments: Any) -> None:
        adopt(timeout=datetime.timedelta(seconds=arguments.ddp_timeout))

    wrap_later("accelerate.state", "PartialState.__init__", adopt)
    for package in ("lightning.fabric", "lightning_fabric"):
        wrap_later(f"{package}.utilities.distributed", "_init_dist_connection", adopt)
    wrap_later("transformers.training_args", "TrainingArguments.__post_init__", adopt_argument)


def name_backend_for_libraries() -> None:
    """Make libraries that know backends by name treat an existing group as one of gloo.

    ignite's auto_model() leaves the model alone for a backend that it does not know. DeepSpeed compiles code of its
    own against an installed oneCCL if the bindings of ccl can be imported.
    """

    def patch_ignite(module: ModuleType) -> None:
        def backend(original: Callable[[Any], str], model: Any) -> str:
            name = original(model)
            return name if name in model.available_backends else "gloo"

        if hasattr(module, "_NativeDistModel"):
            replace_function(module._NativeDistModel, "backend", backend)

    def patch_deepspeed(module: ModuleType) -> None:
        module.CPU_Accelerator.communication_backend_name = lambda _: "gloo"

    after_import("ignite.distributed.comp_models.native", patch_ignite)
    after_import("deepspeed.accelerator.cpu_accelerator", patch_deepspeed)


def record_losses() -> None:
    """Record the losses that the Trainer logs, for the run's report."""

    def record(handler: Any, args: Any, state: Any, control: Any, logs: Any, **kwargs: Any) -> None:
        if isinstance(logs, dict) and "loss" in logs:
            note(loss=logs["loss"], step=state.global_step)

    wrap_later("transformers.trainer_callback", "CallbackHandler.on_log", record)


def use_synced_data() -> None:
    """Make load_dataset("NAME") read a copied data set.

    The package `datasets` does not look for data files in the hub's cache while it is offline.
    """
    folder = program.ROOT / HUB
    if os.environ.get(HUB_CACHES[0]) != str(folder) or os.environ.get(OFFLINE) in (None, "", "0"):
        return

    def load_copy(original: Callable[..., Any], path: str, revision: Any = None, *args: Any, **kwargs: Any) -> Any:
        copy = None if Path(path).exists() else data_copy(folder, path, str(revision or "main"))
        return original(str(copy or path), revision, *args, **kwargs)

    after_import("datasets.load", lambda module: replace_function(module, "dataset_module_factory", load_copy))


def data_copy(folder: Path, name: str, revision: str) -> Path | None:
    """Return the folder of a data set's revision in a cache, or None if it is not there."""
    storage = folder / f"datasets--{name.replace('/', '--')}"
    reference = storage / "refs" / revision
    commit = reference.read_text().strip() if reference.is_file() else revision
    copy = storage / "snapshots" / commit
    return copy if copy.is_dir() else None
