"""`orch train --on k8s`: read, decide, make the objects."""

from __future__ import annotations

import datetime
import getpass
import secrets
import socket
import time
from dataclasses import dataclass, replace
from pathlib import Path

from orchestrator import load, runs
from orchestrator.backends.kube import Kube
from orchestrator.backends.kube_connect import connect
from orchestrator.card import run_card, whereabouts
from orchestrator.errors import OrchError, RequestError
from orchestrator.execute import execute
from orchestrator.kube import names
from orchestrator.kube.place import KubePlace
from orchestrator.kube.settings import KubeSettings
from orchestrator.load.kube import kube_settings
from orchestrator.operations.kube.watch import KubeWatch
from orchestrator.plan import ApplyObjects, Plan
from orchestrator.plan_kube import KubeSite, plan_kube
from orchestrator.recipe import Recipe, Value
from orchestrator.share import TRAIN
from orchestrator.train_request import TrainRequest

LAUNCHER = "pytorchjob"


@dataclass(frozen=True, slots=True, kw_only=True)
class KubeAsked:
    """The flags of the command line, not yet checked against any file."""

    request: TrainRequest
    launcher: str | None
    pairs: tuple[str, ...]
    k8s_file: Path | None
    k8s: tuple[str, ...]
    runs_dir: Path


def plan(asked: KubeAsked) -> Plan:
    """Read the files, decide. Asks no cluster."""
    settings = kube_settings(asked.k8s_file, list(asked.k8s))
    recipe = load.recipe(asked.request.recipe)
    stack = load.stack(asked.request.stack)
    chosen = chosen_settings(asked.pairs, recipe, settings)
    request = replace(asked.request, settings=chosen)
    site = new_site(recipe, recipe.settings(request.preset, chosen), settings)
    launcher = asked.launcher or LAUNCHER
    first = plan_kube(
        request, launcher=launcher, settings=settings, recipe=recipe, stack=stack, site=site
    )
    resume = None if request.fresh else runs.unfinished(asked.runs_dir.absolute(), first.key)
    if resume is None:
        return first
    return plan_kube(
        request, launcher=launcher, settings=settings, recipe=recipe, stack=stack, site=site,
        resume=resume,
    )  # fmt: skip


def chosen_settings(
    pairs: tuple[str, ...], recipe: Recipe, settings: KubeSettings
) -> dict[str, Value]:
    """--set, where a path may also be one on the volume."""
    there = {
        name: text
        for name, _, text in (pair.partition("=") for pair in pairs)
        if name in recipe.paths and text.startswith(f"{settings.mount}/")
    }
    here = [pair for pair in pairs if pair.partition("=")[0] not in there]
    return {**load.settings(here, recipe), **there}


def new_site(recipe: Recipe, values: dict[str, Value], settings: KubeSettings) -> KubeSite:
    now = datetime.datetime.now().strftime("%Y%m%d-%H%M%S")
    paths = [recipe.script, *(str(values[name]) for name in recipe.paths if name in values)]
    own = [path for path in dict.fromkeys(paths) if is_own(path, settings)]
    return KubeSite(
        run_id=names.run_id(now, recipe.name, secrets.token_hex(2)),
        train_here=str(TRAIN),
        started_by=f"{getpass.getuser()}@{socket.gethostname()}",
        created=round(time.time(), 3),
        contents={path: read(path) for path in own},
    )


def is_own(path: str, settings: KubeSettings) -> bool:
    """Whether it is a file of this machine that no image has."""
    return not Path(path).is_relative_to(TRAIN) and not path.startswith(f"{settings.mount}/")


def read(path: str) -> bytes:
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise RequestError(f"{path} cannot be read: {error.strerror}.") from None


def start(plan: Plan, folder: Path) -> KubeWatch:
    """Make the run's objects; -> the run, to be watched. It lives on without that."""
    assert plan.kube is not None
    cluster = connect(plan.kube.context, namespace_asked(plan))
    plan = replace(plan, kube=seen(plan.kube, cluster))
    runs.record(plan, folder)
    try:
        execute(plan, {}, cluster)
    except OrchError:
        (folder / "plan.json").unlink()  # nothing was started; what was made has our label
        folder.rmdir()
        remove(cluster, plan)
        raise
    own_by_job(cluster, plan)
    return KubeWatch(whereabouts(run_card(plan)), folder, cluster=cluster)


def seen(place: KubePlace, cluster: Kube) -> KubePlace:
    """Where it really is: the kubeconfig's current context may be another one tomorrow."""
    return replace(place, namespace=cluster.namespace, context=cluster.context)


def namespace_asked(plan: Plan) -> str | None:
    """None where the kubeconfig's own was meant."""
    (step,) = (step for step in plan.steps if isinstance(step, ApplyObjects))
    found: str | None = step.objects[0]["metadata"].get("namespace")
    return found


def own_by_job(cluster: Kube, plan: Plan) -> None:
    """The run's other objects go when its job goes, also by its time to live."""
    (step,) = (step for step in plan.steps if isinstance(step, ApplyObjects))
    *others, job = step.objects
    assert plan.kube is not None
    kube = plan.kube
    made = cluster.job(kube.group, kube.version, kube.plural, kube.job)
    owner = {
        "apiVersion": job["apiVersion"],
        "kind": job["kind"],
        "name": kube.job,
        "uid": made["metadata"]["uid"],
    }
    for other in others:
        cluster.apply({**other, "metadata": {**other["metadata"], "ownerReferences": [owner]}})


def remove(cluster: Kube, plan: Plan) -> None:
    """What was made before something failed."""
    from orchestrator.operations.kube.stop import delete_objects

    assert plan.kube is not None
    try:
        delete_objects(cluster, plan.kube, plan.run_id)
    except OrchError:  # the first error is the one to tell
        pass
