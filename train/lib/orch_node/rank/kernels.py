"""Replace dropout and attention of torch by orch's kernels: on all ranks, or on none.

Ranks that draw from equal generators must draw equally often: otherwise a script that shuffles with them would train
on other data on each rank.
"""

from __future__ import annotations

import importlib
import os
from types import ModuleType

from orch_node.events import send
from orch_node.protocol.environment import KERNELS, TORCHS_KERNELS
from orch_node.protocol.events import Decided
from orch_node.protocol.layout import RankEntry, RunLayout
from orch_node.rank.frameworks import AfterImport

PACKAGE = "orch_kernels"
KEY = "orch/kernels"


def use(torch: ModuleType, layout: RunLayout, placement: RankEntry) -> None:
    """Use the kernels unless the request keeps torch's functions or a rank has no kernels, which is reported."""
    if os.environ.get(KERNELS) == TORCHS_KERNELS:
        return
    if reason := agree(torch, layout, find_problem(placement.node)):
        if placement.rank == 0:
            send(Decided(text=f"kernels: torch ({reason})", topic="kernels", value=TORCHS_KERNELS))
        return
    kernels = importlib.import_module(PACKAGE)
    kernels.use()
    AfterImport("transformers.modeling_utils", kernels.replace_eager_attention).install()


def find_problem(node: str) -> str:
    """Return why this rank cannot use the kernels; empty if it can."""
    try:
        reason = importlib.import_module(PACKAGE).problem()
    except ImportError:
        reason = f"the package {PACKAGE}, which comes with the bindings for ccl, is not installed"
    return f"{reason} on {node}" if reason else ""


def agree(torch: ModuleType, layout: RunLayout, problem: str) -> str:
    """Return the problem of a rank, the same on all ranks; empty if all ranks can use the kernels."""
    if layout.world_size == 1:
        return problem
    store = torch.distributed.distributed_c10d._get_default_store()
    if problem:
        store.set(f"{KEY}/problem", problem)
    if store.add(f"{KEY}/ranks", 1) >= layout.world_size:
        store.set(KEY, store.get(f"{KEY}/problem") if store.check([f"{KEY}/problem"]) else "")
    return str(store.get(KEY).decode())
