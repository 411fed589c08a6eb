"""What a cluster of Kubernetes is to orch: the image, the size of a pod, the storage."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from fractions import Fraction

from orchestrator.errors import PlanError
from orchestrator.targets.kubernetes.manifests import names
from orchestrator.targets.kubernetes.manifests.quantity import amount

FILES = "/etc/orch"  # where a run's ConfigMap is mounted
SECRETS = "/etc/orch-secrets"
TOKEN = "HF_TOKEN"
LABELS = "`kubectl get nodes --show-labels` prints those that there are."


@dataclass(frozen=True, slots=True, kw_only=True)
class KubeSettings:
    """`context` and `namespace`: None takes those of the kubeconfig.

    `cpu`, `memory`, `shm`: of each pod with ranks, quantities. `claim`: a PersistentVolumeClaim
    that all pods can write, mounted at `mount`. `root`: the folder of train/ in the image.
    `min_nodes`: an elastic run goes on with so many. `mpi`: Intel or OpenMPI. `ttl`: seconds.
    `queue`: of Kueue. `spread`, `pack`: labels of nodes that pods shall differ in, or share.
    `node_affinity`, `tolerations`, `volumes`, `env`, `secret_env`: as manifests/wishes.py has them.
    """

    image: str = ""
    context: str | None = None
    namespace: str | None = None
    cpu: str = "4"
    memory: str = "8Gi"
    shm: str = "1Gi"
    launcher_cpu: str = "1"
    launcher_memory: str = "1Gi"
    claim: str = "orch"
    mount: str = "/orch"
    storage: str = "50Gi"
    storage_class: str | None = None
    root: str = "/opt/orch"
    python: str = "python3"
    files: str = FILES
    user: str = "mpiuser"
    uid: int = 1000
    ssh_port: int = 2222
    mpi: str | None = None
    min_nodes: int | None = None
    ttl: int = 86400
    token_secret: str = "orch-hf"
    pull_secrets: tuple[str, ...] = ()
    service_account: str | None = None
    priority_class: str | None = None
    node_selector: Mapping[str, str] = field(default_factory=dict)
    queue: str | None = None
    spread: str | None = None
    pack: str | None = None
    node_affinity: tuple[str, ...] = ()
    tolerations: tuple[str, ...] = ()
    runtime_class: str | None = None
    volumes: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    secret_env: Mapping[str, str] = field(default_factory=dict)
    share_cores: bool = False  # more ranks than CPUs in a pod, for small test clusters

    @property
    def cpus(self) -> Fraction:
        return amount(self.cpu, "cpu")

    @property
    def ssh_folder(self) -> str:
        return f"/home/{self.user}/.ssh"

    def check(self) -> None:
        """Raises PlanError for the first value that Kubernetes would refuse."""
        for name in ("cpu", "memory", "shm", "launcher_cpu", "launcher_memory", "storage"):
            amount(getattr(self, name), name)
        if not self.image or any(letter.isspace() for letter in self.image):
            raise PlanError(
                "No image is given for the pods."
                if not self.image
                else f"image = {self.image!r} is no name of an image.",
                hint="`--k8s image=registry.example/orch:current`, or image in orch-k8s.toml; "
                "`orch image build` makes one.",
            )
        self.check_names()
        if self.mpi not in (None, "Intel", "OpenMPI"):
            raise PlanError(f"mpi = {self.mpi!r}.", hint="It is Intel or OpenMPI.")
        if self.ttl < 0 or self.uid < 1:
            raise PlanError("ttl is 0 or more seconds, and uid is not root's.")

    def check_names(self) -> None:
        given = {
            "namespace": self.namespace,
            "claim": self.claim,
            "token_secret": self.token_secret,
            "service_account": self.service_account,
            "priority_class": self.priority_class,
            "storage_class": self.storage_class,
            "queue": self.queue,
            "runtime_class": self.runtime_class,
            **{f"pull_secrets[{i}]": name for i, name in enumerate(self.pull_secrets)},
        }
        for what, name in given.items():
            if name is not None and not names.is_subdomain(name):
                raise PlanError(
                    f"{what} = {name!r} is no name of Kubernetes'.",
                    hint="Lower case letters, digits and dashes, as RFC 1123 has it.",
                )
        for key, value in self.node_selector.items():
            if not names.is_label_key(key) or not names.is_label_value(value):
                raise PlanError(f"node_selector: {key}={value} is no label.", hint=LABELS)
        for what, label in (("spread", self.spread), ("pack", self.pack)):
            if label is not None and not names.is_label_key(label):
                raise PlanError(f"{what} = {label!r} is no label of nodes.", hint=LABELS)
        if self.spread and self.spread == self.pack:
            raise PlanError(
                f"spread and pack are both {self.pack}: pods cannot do both.", hint="Leave one of the two out."
            )
        for what, path in (("mount", self.mount), ("root", self.root), ("files", self.files)):
            if not path.startswith("/") or ":" in path or ".." in path.split("/"):
                raise PlanError(
                    f"{what} = {path!r} is no absolute path.", hint="It begins with /, and has no colon and no `..`."
                )
