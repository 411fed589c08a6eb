"""How a recipe's script begins and ends: errors become one line and an exit code."""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Callable

import torch.distributed as dist
from orch_node.events import send
from orch_node.protocol.events import Raised
from transformers.utils.logging import disable_progress_bar

from orch_training import ranks
from orch_training.errors import RecipeError


def run_script(run: Callable[[], None]) -> int:
    """-> exit code. Leaves a process group that `run` has made. Where a script has let Python look
    for no garbage while it imports, that begins here, and leaves out what was imported."""
    if not gc.isenabled():
        gc.freeze()
        gc.enable()
    if not sys.stderr.isatty():
        disable_progress_bar()  # of loading and saving weights
    group_is_ours = not (dist.is_available() and dist.is_initialized())
    try:
        run()
    except RecipeError as error:
        return end(tell(error), group_is_ours)
    except OSError as error:  # a full disk, a folder that vanished
        where = f" ({error.filename})" if error.filename else ""
        told = tell(RecipeError(f"{error.strerror or error}{where}."))
        return end(told, group_is_ours)
    if group_is_ours:
        ranks.leave()
    return 0


def end(code: int, group_is_ours: bool) -> int:
    """After an error the group still stands; gloo often aborts in its teardown, so leave it out."""
    if group_is_ours and dist.is_available() and dist.is_initialized():
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    return code


def tell(error: RecipeError) -> int:
    """On the screen once, to the supervisor from every rank; -> exit code."""
    send(Raised(text=f"error: {error}"))
    if ranks.is_main() or not error.shared:
        where = "" if ranks.is_main() else f"rank {ranks.rank()}: "
        print(f"error: {where}{error}", file=sys.stderr, flush=True)
    return error.code
