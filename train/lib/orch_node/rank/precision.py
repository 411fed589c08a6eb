"""Choose the precision of a batch job or of pods: all ranks decide together before the script runs."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType

from orch_node import atomic_write
from orch_node.events import send
from orch_node.protocol.events import Decided
from orch_node.protocol.layout import RunLayout, RunPrecision
from orch_node.protocol.precision import BF16, FP32, bf16_flag, describe_lack, insert_arguments
from orch_node.rank.checks import RankError
from orch_node.standalone import facts

KEY = "orch/precision"
FAST_FLAGS = ("amx_bf16", "avx512_bf16")  # with which BF16 was about twice as fast
ADVISED_STEPS = 10  # shorter trainings get no advice
ADVICE = (
    "orch: the training was in FP32, and these CPUs have {flag}: BF16 was about twice as fast elsewhere "
    "(bf16=True of TrainingArguments, torch.autocast('cpu', torch.bfloat16))."
)


def choose(torch: ModuleType, layout: RunLayout, rank: int, argv: list[str]) -> list[str]:
    """Return the script's command line with the arguments of the precision of all ranks.

    Rank 0 decides, reports the choice and stores it with the checkpoints, so that a restarted
    or resumed run keeps it. Does nothing where the plan has already decided.

    Raises:
        RankError: if the checkpoint is in BF16 and a node has no instructions for it.
    """
    precision = layout.precision
    if precision is None:
        return argv
    lacking = "" if bf16_flag(facts.cpu_flags()) else layout.placement(rank).node
    spares = layout.spares_without_bf16
    if layout.world_size == 1:
        value, reason = decide(precision, [lacking] if lacking else [], spares)
    else:
        store = torch.distributed.distributed_c10d._get_default_store()
        if rank == 0:
            names = {lacking, *(store.get(f"{KEY}/{n}").decode() for n in range(1, layout.world_size))}
            store.set(KEY, json.dumps(decide(precision, sorted(names - {""}), spares)))
        else:
            store.set(f"{KEY}/{rank}", lacking)
        value, reason = json.loads(store.get(KEY))
    if not value:
        raise RankError(reason)
    if rank == 0:
        record(precision, value)
        send(Decided(text=f"precision: {value} ({reason})", topic="precision", value=value))
    return insert_arguments(argv, precision.arguments, value)


def advise(steps: int) -> None:
    """Print at the end of an own script's training in FP32 that BF16 is faster, if it is on this CPU.

    Recipes choose their precision with orch.
    """
    flag = bf16_flag(facts.cpu_flags())
    if steps >= ADVISED_STEPS and flag in FAST_FLAGS and "orch_training" not in sys.modules:
        print(ADVICE.format(flag=flag), file=sys.stderr)


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
        return "", (
            f"the checkpoint was trained in BF16, but {describe_lack(', '.join(lacking))}. Resume "
            "with --precision fp32, or emulate with --precision bf16 --allow-slow-bf16."
        )
    if recorded:
        return recorded, "as in the checkpoint"
    lacking = sorted({*lacking, *spares})
    if lacking:
        return FP32, describe_lack(", ".join(lacking))
    return BF16, "all nodes have BF16 instructions"


def read_recorded(precision: RunPrecision) -> str:
    """Return the precision that an earlier start of this run recorded, or an empty string."""
    path = Path(precision.file)
    if not precision.file or not path.exists():
        return ""
    value = path.read_text(errors="replace").strip()
    if value not in (BF16, FP32):
        raise RankError(f"{path} contains {value!r:.40}, expected {BF16} or {FP32}.")
    return value


def record(precision: RunPrecision, value: str) -> None:
    """Store the precision with the checkpoints."""
    if precision.file:
        path = Path(precision.file)
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        atomic_write.write(path, f"{value}\n")
