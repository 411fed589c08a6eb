"""Choose a run's precision and kernels: all ranks decide together before the script runs.

Only batch jobs and pods choose the precision here; for other runs the plan has chosen it. Orch's kernels for dropout
and attention are used on all ranks or on none: ranks that draw from equal generators must draw equally often,
otherwise a script that shuffles with them would train on other data on each rank.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

from orch_node import atomic_write
from orch_node.events import send
from orch_node.protocol import layout as layouts
from orch_node.protocol.environment import KERNELS, TORCHS_KERNELS
from orch_node.protocol.events import Decided
from orch_node.protocol.layout import BF16, FP32, RankEntry, RunLayout, RunPrecision
from orch_node.rank.checks import RankError, describe
from orch_node.rank.hooks import after_import
from orch_node.standalone import facts

PACKAGE = "orch_kernels"
FAST_FLAGS = ("amx_bf16", "avx512_bf16")  # with which BF16 was faster
ADVISED_STEPS = 10  # shorter trainings get no advice


def choose_precision(torch: ModuleType, layout: RunLayout, rank: int, argv: list[str]) -> list[str]:
    """Return the script's command line with the arguments of the precision of all ranks.

    Rank 0 decides, reports the choice and stores it with the checkpoints, so that a restarted
    or resumed run keeps it. Does nothing where the plan has already decided.

    Raises:
        RankError: if the checkpoint is in BF16 and a node has no instructions for it.
    """
    precision = layout.precision
    if precision is None:
        return argv
    lacking = "" if layouts.bf16_flag(facts.cpu_flags()) else layout.placement(rank).node
    spares = layout.spares_without_bf16
    value, reason = decide_together(
        torch, layout, rank, "orch/precision", lacking, lambda names: decide(precision, sorted({*names} - {""}), spares)
    )
    if not value:
        raise RankError(reason)
    if rank == 0:
        if precision.file:
            path = Path(precision.file)
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            atomic_write.write(path, f"{value}\n")
        send(Decided(text=f"precision: {value} ({reason})", topic="precision", value=value))
    placeholder = layouts.PRECISION_PLACEHOLDER
    return [part for word in argv for part in (precision.arguments[value] if word == placeholder else (word,))]


def advise(steps: int) -> None:
    """Print at the end of an own script's training in FP32 that BF16 is faster, if it is on this CPU.

    Recipes choose their precision with orch.
    """
    flag = layouts.bf16_flag(facts.cpu_flags())
    if steps >= ADVISED_STEPS and flag in FAST_FLAGS and "orch_training" not in sys.modules:
        print(describe("bf16-is-faster", flag=flag), file=sys.stderr)


def decide(precision: RunPrecision, lacking: list[str], spares: Sequence[str] = ()) -> tuple[str, str]:
    """Return the precision and its reason; an empty precision and an error if there is none.

    Args:
        precision: the plan's settings.
        lacking: names of the nodes with ranks but without BF16 instructions.
        spares: names of the spare nodes without BF16 instructions. A restart may need these nodes, so a new
            run does not train in BF16; a resumed one keeps the precision of its checkpoint.
    """
    recorded = read_recorded(precision)
    if recorded == BF16 and lacking:
        return "", describe("bf16-checkpoint", lack=layouts.describe_lack(", ".join(lacking)))
    if recorded:
        return recorded, "as in the checkpoint"
    lacking = sorted({*lacking, *spares})
    return (FP32, layouts.describe_lack(", ".join(lacking))) if lacking else (BF16, "all nodes have BF16 instructions")


def read_recorded(precision: RunPrecision) -> str:
    """Return the precision that an earlier start of this run recorded, or an empty string."""
    path = Path(precision.file)
    if not precision.file or not path.exists():
        return ""
    value = path.read_text(errors="replace").strip()
    if value not in (BF16, FP32):
        raise RankError(f"{path} contains {value!r:.40}, expected {BF16} or {FP32}.")
    return value


def use_kernels(torch: ModuleType, layout: RunLayout, placement: RankEntry) -> None:
    """Use the kernels unless the request keeps torch's functions or a rank has no kernels, which is reported."""
    if os.environ.get(KERNELS) == TORCHS_KERNELS:
        return
    problem = find_kernel_problem()
    description = f"{problem} on {placement.node}" if problem else ""
    reason = decide_together(torch, layout, placement.rank, "orch/kernels", description, max)
    if reason:
        if placement.rank == 0:
            send(Decided(text=f"kernels: torch ({reason})", topic="kernels", value=TORCHS_KERNELS))
        return
    kernels = importlib.import_module(PACKAGE)
    kernels.use()
    after_import("transformers.modeling_utils", kernels.replace_in_models)


def find_kernel_problem() -> str | None:
    """Return why this process cannot use the kernels; None if it can."""
    try:
        reason: str | None = importlib.import_module(PACKAGE).problem()
    except ImportError:
        reason = f"the package {PACKAGE}, which comes with the bindings for ccl, is not installed"
    return reason


def decide_together(
    torch: ModuleType, layout: RunLayout, rank: int, key: str, text: str, decide: Callable[[list[str]], Any]
) -> Any:
    """Return what rank 0 decides from the texts of all ranks, which they exchange through their store."""
    if layout.world_size == 1:
        return decide([text])
    store = torch.distributed.distributed_c10d._get_default_store()
    if rank == 0:
        texts = [text, *(store.get(f"{key}/{n}").decode() for n in range(1, layout.world_size))]
        store.set(key, json.dumps(decide(texts)))
    else:
        store.set(f"{key}/{rank}", text)
    return json.loads(store.get(key))
