"""Name runs, and check the records of runs that others have sent, in the same way for every target."""

from __future__ import annotations

import datetime
import secrets
import socket
import time
from collections.abc import Callable

from orch_node.protocol import files
from orch_node.protocol.record import RunRecord

from orchestrator.errors import RequestError
from orchestrator.files import TRAIN, user_name
from orchestrator.planning.request import Resume, Site


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


class UntrustedRecordError(RequestError):
    """A run record that is listed, but cannot be used, because a value in it cannot be true."""


def check_output_dir(record: RunRecord, runs: str) -> None:
    """Raise UntrustedRecordError if a run writes outside of the folder of runs.

    A run writes to its own folder, or to that of an earlier run that it has resumed.
    """
    path = record.output_dir
    if path is None:
        return
    run_id = path.removeprefix(f"{runs}/").removesuffix("/output")
    if not files.is_run_id(run_id) or path != f"{runs}/{run_id}/output":
        raise UntrustedRecordError(
            f"The record of {record.run_id} names the output folder {path!r:.100}, which is outside of {runs}.",
            hint="Nothing was changed. Check who can write to the runs' records.",
        )
