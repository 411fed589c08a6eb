"""Pods of a Kubernetes cluster, as a target."""

from __future__ import annotations

from pathlib import Path

from orch_node.protocol.record import RunRecord

from orchestrator.errors import RequestError
from orchestrator.planning.plan import Plan
from orchestrator.planning.request import TargetOptions, TrainRequest
from orchestrator.runs.cleanup import CleanupReport
from orchestrator.targets.interface import Listed, RunHandle, SharedFolder, Tell
from orchestrator.targets.kubernetes import find, leftovers, read, start
from orchestrator.targets.kubernetes.handle import KubeHandle
from orchestrator.targets.kubernetes.refuses import REFUSES


class KubeTarget:
    name = "kubernetes"
    refuses = REFUSES

    def plan(self, request: TrainRequest) -> Plan:
        return read.plan(request)

    def start(self, plan: Plan, folder: Path) -> RunHandle:
        return KubeHandle(start.start(plan, folder), folder)

    def handle(self, record: RunRecord, folder: Path) -> RunHandle:
        return KubeHandle(record, folder)

    def find(self, base: Path, name: str, where: str, tell: Tell) -> RunHandle:
        return KubeHandle(*find.find(base, name, where))

    def shared_folder(self, options: tuple[TargetOptions, ...]) -> SharedFolder:
        raise RequestError(
            "There is no folder to fill: pods have their stack from an image.", hint="`orch image build` makes one."
        )

    def list_runs(self, where: str) -> Listed:
        return find.list_runs(where)

    def clean(self, where: str | None, base: Path, *, look: bool) -> CleanupReport:
        return leftovers.clean(find.cluster_of(where or ""), look=look)
