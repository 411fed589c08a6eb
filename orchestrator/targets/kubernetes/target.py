"""The pods of a Kubernetes cluster as a target, and the runs that the cluster has recorded, whoever started them."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

from orch_node.protocol import files, pod, values
from orch_node.protocol.events import NAN_LOSS, Progress, Result, Warned
from orch_node.protocol.node_reports import RunReport
from orch_node.protocol.record import RunRecord

from orchestrator.errors import ExecuteError, OrchError, RequestError
from orchestrator.load.inputs import run_paths_of
from orchestrator.model.decision import Finding
from orchestrator.model.hosts import Nodes, grouped
from orchestrator.planning.plan import Plan
from orchestrator.planning.request import NO_ARRAYS, Resume, TargetOptions, TrainRequest, UnsupportedOption
from orchestrator.runs import store
from orchestrator.runs.outcome import CleanupReport
from orchestrator.runs.rows import RunRow, row_of
from orchestrator.targets import interface
from orchestrator.targets.entry import refused_by_manager
from orchestrator.targets.kubernetes import inputs, names, namespace, objects
from orchestrator.targets.kubernetes.client import KubernetesClient, NotThere, Refused, connect
from orchestrator.targets.kubernetes.local_copy import parse, split_time
from orchestrator.targets.kubernetes.options import KubernetesOptions
from orchestrator.targets.kubernetes.plan import plan_kubernetes
from orchestrator.targets.kubernetes.run_record import location_of, trusted_record, with_lists
from orchestrator.targets.kubernetes.settings import KubernetesSettings
from orchestrator.targets.kubernetes.status import PodState, job_state, pod_state
from orchestrator.targets.kubernetes.watch import KubernetesHandle

MAX_QUERIES = 8  # at the same time
TAIL_LINES = 200  # at the end of a pod's log, to find the newest progress
PACKAGES = UnsupportedOption(
    "adds packages to the stack of nodes, and pods have those of their image", "Add the packages to the image."
)
REFUSES: Mapping[str, UnsupportedOption] = {
    **refused_by_manager(
        "Kubernetes",
        inventory="Use --k8s context=NAME and namespace=NAME to choose the cluster.",
        exclude="Use --k8s node_selector.LABEL=VALUE to choose nodes.",
    ),
    "spare_nodes": UnsupportedOption("is for other hosts", "The scheduler of Kubernetes replaces nodes by itself."),
    "mpi": UnsupportedOption("is for ranks that mpirun starts; in pods, torchrun starts them", "Leave --mpi out."),
    "python": UnsupportedOption("is for nodes; pods have the Python of their image", "Use --k8s python=PATH."),
    "image_options": UnsupportedOption("is for containers on nodes", "Use --k8s KEY=VALUE for the settings of pods."),
    **dict.fromkeys(("requirements", "extra", "packages"), PACKAGES),
    **dict.fromkeys(("array", "array_sample"), NO_ARRAYS),
}


class KubernetesTarget(interface.Target):
    """The target of --on k8s."""

    name = "kubernetes"
    refuses = REFUSES
    options: type[TargetOptions] | None = KubernetesOptions

    def plan(self, request: TrainRequest, resume: Resume | None = None) -> Plan:
        """Return the plan of a request; the cluster is only queried for its kinds of jobs."""
        loaded = inputs.read(request, resume)
        runs, train = f"{loaded.kubernetes.mount}/runs", f"{loaded.kubernetes.root}/train"
        run_paths = run_paths_of(resume, loaded.loaded.recipe.name, runs, train=train, name=names.run_id)
        return plan_kubernetes(request, loaded, run_paths)

    def check(self, request: interface.CheckRequest) -> Iterator[Finding]:
        return namespace.check(request)

    def start(self, plan: Plan, folder: Path) -> interface.RunHandle:
        record, earlier = objects.start(plan, folder)
        handle = KubernetesHandle(record, folder, earlier=earlier)
        handle.record_start()
        return handle

    def handle(self, record: RunRecord, folder: Path) -> interface.RunHandle:
        return KubernetesHandle(record, folder)

    def find(self, base: Path, name: str, inventory: str, notify: interface.Notify) -> interface.RunHandle:
        records, problems = query_runs(cluster_of(inventory))
        run_id = store.match_id(name, records, f"in {inventory}", notify)
        if error := problems.get(run_id):
            raise error
        record = next(record for record in records if record.run_id == run_id)
        folder = base / run_id
        if not (folder / files.PLAN).exists():
            store.write_record(record, folder)
        return KubernetesHandle(record, folder)

    def shared_folder(self, options: tuple[TargetOptions, ...]) -> interface.SharedFolder:
        raise RequestError.about("shared-folder-of-pods")

    def commands(self, inventory: str, nodes: Nodes | None, stack: str) -> interface.NodeCommands:
        raise RequestError.about("commands-in-pods")

    def live_nodes(self, inventory: str, names: Collection[str] | None = None) -> list[interface.LiveNode]:
        raise RequestError("Kubernetes manages its nodes.", hint="kubectl top nodes lists them.")

    def list_runs(self, inventory: str, base: Path) -> interface.RunList:
        cluster = cluster_of(inventory)
        records, problems = query_runs(cluster)
        pods = logged_pods(cluster)

        def make_row(record: RunRecord) -> RunRow:
            return row_of(
                record,
                report_in(cluster, pods.get(record.run_id, ()), record),
                state="unknown" if record.run_id in problems else state_in(cluster, record),
                nodes=(host.node for host in record.nodes),
                folder=record.run_dir,
            )

        with ThreadPoolExecutor(max_workers=MAX_QUERIES) as pool:
            rows = tuple(pool.map(make_row, records))
        return interface.RunList(rows=rows, warnings=tuple(error.message for error in problems.values()))

    def clean(self, inventory: str | None, base: Path, *, dry_run: bool) -> CleanupReport:
        return objects.clean(cluster_of(inventory or ""), dry_run=dry_run)


def default_settings() -> KubernetesSettings:
    """Return the settings of ORCH_K8S_FILE, or else of orch-k8s.toml."""
    file = os.environ.get("ORCH_K8S_FILE")
    return inputs.kubernetes_settings(Path(file) if file else None, [])


def cluster_of(inventory: str) -> KubernetesClient:
    """Connect to the cluster of `k8s` or `k8s:NAMESPACE`, as the default settings describe it."""
    settings = default_settings()
    return connect(settings.context, inventory.partition(":")[2] or settings.namespace)


def query_runs(cluster: KubernetesClient) -> tuple[list[RunRecord], dict[str, OrchError]]:
    """Read the records of a namespace, and check whether they can be trusted.

    Returns:
        The records, oldest first, and why a run cannot be used, by its id or the name of its ConfigMap.
    """
    settings = default_settings().model_copy(update={"context": cluster.context, "namespace": cluster.namespace})
    records: list[RunRecord] = []
    problems: dict[str, OrchError] = {}
    for config_map in cluster.objects("ConfigMap", f"{names.selector()},!{names.PART}"):
        texts = config_map.get("data") or {}
        if "run.json" not in texts:
            continue
        try:
            record = with_lists(values.loads(texts["run.json"], "run.json"), pod.parse(texts.get("pod.json", "")))
        except values.ProtocolError as error:
            name = config_map["metadata"]["name"]
            problems[name] = ExecuteError.about("skipped-run", name=name, error=error)
            continue
        try:
            record = trusted_record(record, settings, label=config_map["metadata"]["labels"][names.RUN])
        except OrchError as error:
            problems[record.run_id] = error
        records.append(record)
    return sorted(records, key=lambda record: (record.created, record.run_id)), problems


def state_in(cluster: KubernetesClient, record: RunRecord) -> str:
    with suppress(NotThere, Refused):  # the API checks rights before it reports that a kind is missing
        return job_state(cluster.job(location_of(record))).state
    return "unknown"


def logged_pods(cluster: KubernetesClient) -> dict[str, list[PodState]]:
    """Return the states of the pods that have a log, by the id of their run; empty if pods may not be listed."""
    with suppress(OrchError):
        pods = cluster.objects("Pod", f"{names.selector()},!{names.PART}")
        states = ((str(pod["metadata"]["labels"][names.RUN]), pod_state(pod)) for pod in pods)
        return grouped((run_id, state) for run_id, state in states if state.started)
    return {}


def report_in(cluster: KubernetesClient, pods: Sequence[PodState], record: RunRecord) -> RunReport:
    """Return what a run has reported at the end of the log of the first of these pods, as far as it can be read."""
    newest: dict[type, Any] = {}
    with suppress(OrchError):
        for state in sorted(pods, key=lambda state: state.pod)[:1]:
            for line in cluster.log(state.pod, state.container, follow=False, since=None, tail=TAIL_LINES):
                event = parse(split_time(line)[1], ranks=len(record.layout)).event
                newest[type(event)] = event
    result, warning = newest.get(Result), newest.get(Warned)
    return RunReport(
        progress=newest.get(Progress),
        result=result.figures if result else {},
        is_nan=warning is not None and NAN_LOSS in warning.text,
    )
