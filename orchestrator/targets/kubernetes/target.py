"""The pods of a Kubernetes cluster as a target."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from pathlib import Path

from orch_node.protocol.record import RunRecord

from orchestrator.errors import RequestError
from orchestrator.load.inputs import run_paths_of
from orchestrator.model.decision import Finding
from orchestrator.model.hosts import Nodes
from orchestrator.planning.plan import Plan
from orchestrator.planning.request import NO_ARRAYS, Resume, TargetOptions, TrainRequest, UnsupportedOption
from orchestrator.runs.outcome import CleanupReport
from orchestrator.targets import interface
from orchestrator.targets.entry import refused_by_manager
from orchestrator.targets.kubernetes import find, inputs, namespace, objects
from orchestrator.targets.kubernetes.names import run_id
from orchestrator.targets.kubernetes.options import KubernetesOptions
from orchestrator.targets.kubernetes.plan import plan_kubernetes
from orchestrator.targets.kubernetes.watch import KubernetesHandle

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
        run_paths = run_paths_of(resume, loaded.loaded.recipe.name, runs, train=train, name=run_id)
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
        return KubernetesHandle(*find.find_run(base, name, inventory, notify))

    def shared_folder(self, options: tuple[TargetOptions, ...]) -> interface.SharedFolder:
        raise RequestError.about("shared-folder-of-pods")

    def commands(self, inventory: str, nodes: Nodes | None, stack: str) -> interface.NodeCommands:
        raise RequestError.about("commands-in-pods")

    def live_nodes(self, inventory: str, names: Collection[str] | None = None) -> list[interface.LiveNode]:
        raise RequestError("Kubernetes manages its nodes.", hint="kubectl top nodes lists them.")

    def list_runs(self, inventory: str, base: Path) -> interface.RunList:
        return find.list_runs(inventory)

    def clean(self, inventory: str | None, base: Path, *, dry_run: bool) -> CleanupReport:
        return objects.clean(find.cluster_of(inventory or ""), dry_run=dry_run)
