"""Name runs, in the same way for every target."""

from __future__ import annotations

import datetime
import secrets
import socket
import time
from collections.abc import Callable

from orchestrator.paths import TRAIN
from orchestrator.planning.request import Resume, Site
from orchestrator.state import user_name


def run_id(stamp: str, recipe: str, suffix: str) -> str:
    """Return a run id of time, recipe and suffix, so that lists of ids are sorted by time."""
    letters = (letter if letter.isascii() and letter.isalnum() else "-" for letter in recipe)
    return f"{stamp}-{''.join(letters)[:40]}-{suffix}"


def site_of(
    resume: Resume | None,
    recipe: str,
    runs: str,
    *,
    train: str,
    store: str = "",
    root: str = "",
    name: Callable[[str, str, str], str] = run_id,
) -> Site:
    """Return the identity and the folders of a new run, or those of the run that is resumed.

    Args:
        resume: the run whose next attempt is planned, or None.
        recipe: the name of the recipe.
        runs: the folder of runs on the nodes.
        train: the `train` folder on the nodes.
        store: the folder of what controllers have sent to the nodes.
        root: orch's folder on the nodes.
        name: returns the run id for the local time, the name of a recipe and random digits.
    """
    if resume:
        identity = resume.run_id, resume.run_dir, resume.started_by, resume.created
    else:
        new_id = name(datetime.datetime.now().strftime("%Y%m%d-%H%M%S"), recipe, secrets.token_hex(2))
        identity = new_id, f"{runs}/{new_id}", f"{user_name()}@{socket.gethostname()}", round(time.time(), 3)
    run, run_dir, started_by, created = identity
    return Site(
        run_id=run,
        run_dir=run_dir,
        train=train,
        train_here=str(TRAIN),
        started_by=started_by,
        created=created,
        store=store,
        root=root,
        resume=resume,
    )
