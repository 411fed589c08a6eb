"""Name runs, in the same way for every target."""

from __future__ import annotations

import datetime
import secrets
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass, replace

from orchestrator.paths import TRAIN
from orchestrator.planning.request import Resume
from orchestrator.planning.site import Site
from orchestrator.state import user_name


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """The unique parts of a new run's name, and who created it.

    Attributes:
        stamp: the local time, in a form that sorts by time.
        suffix: random digits that distinguish runs of the same second.
        started_by: the user and the host, as `user@host`.
        created: the time in seconds since the epoch.
    """

    stamp: str
    suffix: str
    started_by: str
    created: float


RunName = Callable[[Identity, str], str]


def new_identity() -> Identity:
    """Return the identity of a run that the current user starts now on this machine."""
    return Identity(
        stamp=datetime.datetime.now().strftime("%Y%m%d-%H%M%S"),
        suffix=secrets.token_hex(2),
        started_by=f"{user_name()}@{socket.gethostname()}",
        created=round(time.time(), 3),
    )


def run_id(identity: Identity, recipe: str) -> str:
    """Return a run id of time, recipe and suffix, so that lists of ids are sorted by time."""
    letters = (letter if letter.isascii() and letter.isalnum() else "-" for letter in recipe)
    return f"{identity.stamp}-{''.join(letters)[:40]}-{identity.suffix}"


def site_of(
    resume: Resume | None,
    recipe: str,
    runs: str,
    *,
    train: str,
    store: str = "",
    root: str = "",
    name: RunName = run_id,
) -> Site:
    """Return the identity and the folders of a new run, or those of the run that is resumed.

    Args:
        resume: the run whose next attempt is planned, or None.
        recipe: the name of the recipe.
        runs: the folder of runs on the nodes.
        train: the `train` folder on the nodes.
        store: the folder of what controllers have sent to the nodes.
        root: orch's folder on the nodes.
        name: returns the run id for an identity and the name of a recipe.
    """
    identity = new_identity()
    new_id = name(identity, recipe)
    site = Site(
        run_id=new_id,
        run_dir=f"{runs}/{new_id}",
        train=train,
        train_here=str(TRAIN),
        started_by=identity.started_by,
        created=identity.created,
        store=store,
        root=root,
    )
    if resume is None:
        return site
    return replace(
        site,
        run_id=resume.run_id,
        run_dir=resume.run_dir,
        started_by=resume.started_by,
        created=resume.created,
        resume=resume,
    )
