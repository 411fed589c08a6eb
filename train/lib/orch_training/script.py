"""The frame of a recipe's script: errors become one line and an exit code."""

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
    """Run a recipe and return its exit code.

    A process group that `run` created is destroyed. If garbage collection was off during imports, it is enabled and
    excludes the imported objects.
    """
    if not gc.isenabled():
        gc.freeze()
        gc.enable()
    if not sys.stderr.isatty():
        disable_progress_bar()  # of loading and saving weights
    owns_group = not (dist.is_available() and dist.is_initialized())
    try:
        run()
    except RecipeError as error:
        return end(report(error), owns_group)
    except OSError as error:  # a full disk, a folder that vanished
        file = f" ({error.filename})" if error.filename else ""
        return end(report(RecipeError(f"{error.strerror or error}{file}.")), owns_group)
    if owns_group:
        ranks.destroy_group()
    return 0


def end(code: int, owns_group: bool) -> int:
    """Return the exit code; exit at once if a group exists, which gloo often cannot destroy after an error."""
    if owns_group and dist.is_available() and dist.is_initialized():
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    return code


def report(error: RecipeError) -> int:
    """Print an error once, report it from every rank, and return the exit code."""
    send(Raised(text=f"error: {error}"))
    if ranks.is_main() or not error.shared:
        source = "" if ranks.is_main() else f"rank {ranks.rank()}: "
        print(f"error: {source}{error}", file=sys.stderr, flush=True)
    return error.code
