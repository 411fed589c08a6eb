"""A small API server of Kubernetes for tests: the real wire format over real HTTP, in this process.

It stores objects, applies patches server-side (with field managers and conflicts), lists, watches
(with resource versions, bookmarks and 410), serves pods' logs, runs `exec` over a websocket, and
fails when it is told to.
"""

from __future__ import annotations

import copy
import threading
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from http.server import ThreadingHTTPServer
from pathlib import Path
from typing import Any

import kubernetes.client
import yaml

from orchestrator.targets.kubernetes.api.client import Kube
from tests.support.kube_http import KINDS, TOKEN, Handler, Json

GROUPS = {
    "kubeflow.org": {"v1": ["pytorchjobs"], "v2beta1": ["mpijobs"]},
    "batch": {"v1": ["jobs"]},
    "kueue.x-k8s.io": {"v1beta1": ["workloads", "localqueues"]},
    "trainer.kubeflow.org": {"v1alpha1": ["trainjobs", "trainingruntimes"]},
}


@dataclass
class Log:
    """A container's log; `end` closes it."""

    lines: list[tuple[str, str]] = field(default_factory=list)
    ended: bool = False


@dataclass
class Failure:
    """The next `times` requests that match are answered with `status`."""

    method: str
    pattern: str
    status: int
    times: int = 1
    headers: dict[str, str] = field(default_factory=dict)


@dataclass
class State:
    """What the server knows. Everything is touched under `changed`."""

    objects: dict[tuple[str, str], Json] = field(default_factory=dict)  # (plural, name)
    owners: dict[tuple[str, str], dict[str, str]] = field(default_factory=dict)
    history: list[tuple[int, str, str, Json]] = field(default_factory=list)
    logs: dict[str, Log] = field(default_factory=dict)
    failures: list[Failure] = field(default_factory=list)
    requests: list[tuple[str, str]] = field(default_factory=list)
    bodies: list[bytes] = field(default_factory=list)
    allow_anonymous: bool = False  # whoever asks may: kubectl sends no token without TLS
    version: int = 100
    oldest_version: int = 0  # resource versions below are 410
    drop_streams: int = 0  # so many watches and logs end in the middle
    grace_seconds: float = 0.0  # seconds that a pod is Terminating before it is gone
    break_execs: int = 0  # so many programs' output ends without saying how they ended
    restricted: bool = False  # the namespace enforces Pod Security's profile of that name
    namespaces: set[str] = field(default_factory=lambda: {"team"})
    # (verb, group, resource) of the Role of who asks; None: all is allowed
    role: set[tuple[str, str, str]] | None = None
    used_permissions: set[tuple[str, str, str]] = field(default_factory=set)
    denied_permissions: set[tuple[str, str]] = field(default_factory=set)  # (verb, resource)
    queued_kinds: set[str] = field(default_factory=set)  # that Kueue manages
    groups: dict[str, dict[str, list[str]]] = field(default_factory=lambda: copy.deepcopy(GROUPS))


class Api:
    """The server; `with Api() as api`. Tests change its objects with put, say and fail."""

    def __init__(self) -> None:
        self.state = State()
        self.changed = threading.Condition(threading.RLock())
        self.server = ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (Handler,), {"api": self}))
        self.server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}"

    def __enter__(self) -> Api:
        threading.Thread(target=self.server.serve_forever, args=(0.05,), daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        with self.changed:
            for log in self.state.logs.values():
                log.ended = True
            self.changed.notify_all()
        self.server.shutdown()
        self.server.server_close()

    def write_kubeconfig(self, path: Path, token: str = TOKEN) -> Path:
        config = {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "lab",
            "clusters": [{"name": "lab", "cluster": {"server": self.url}}],
            "users": [{"name": "me", "user": {"token": token}}],
            "contexts": [{"name": "lab", "context": {"cluster": "lab", "user": "me", "namespace": "team"}}],
        }
        path.write_text(yaml.safe_dump(config))
        return path

    def put(self, plural: str, value: Json) -> Json:
        """Make or change an object, as a controller would."""
        with self.changed:
            key = (plural, value["metadata"]["name"])
            known = key in self.state.objects
            self.state.version += 1
            metadata = {
                "uid": str(uuid.uuid4()),
                "namespace": "team",
                "creationTimestamp": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
                **self.state.objects.get(key, {}).get("metadata", {}),
                **value["metadata"],
                "resourceVersion": str(self.state.version),
            }
            made = {**value, "kind": KINDS[plural], "metadata": metadata}
            self.state.objects[key] = made
            self.record("MODIFIED" if known else "ADDED", plural, made)
            return made

    def record(self, change: str, plural: str, value: Json) -> None:
        self.state.history.append((self.state.version, change, plural, copy.deepcopy(value)))
        self.changed.notify_all()

    def remove(self, plural: str, name: str) -> Json | None:
        with self.changed:
            gone = self.state.objects.pop((plural, name), None)
            if gone is not None:
                self.state.version += 1
                gone["metadata"]["resourceVersion"] = str(self.state.version)
                self.record("DELETED", plural, gone)
            return gone

    def terminate(self, name: str) -> None:
        """What the kubelet does to a pod that is being deleted."""
        with self.changed:
            pod = self.state.objects["pods", name]
            if "deletionTimestamp" not in pod["metadata"]:
                metadata = {**pod["metadata"], "deletionTimestamp": timestamp()[:19] + "Z"}
                self.put("pods", {**pod, "metadata": metadata})
                threading.Timer(self.state.grace_seconds, self.remove, ["pods", name]).start()

    def collect(self, uid: str) -> None:
        """What an object that is gone has owned goes, too."""
        with self.changed:
            owned = [
                key
                for key, value in self.state.objects.items()
                if any(one["uid"] == uid for one in value["metadata"].get("ownerReferences", ()))
            ]
            for plural, name in owned:
                self.remove(plural, name)

    def get(self, plural: str, name: str) -> Json | None:
        with self.changed:
            return copy.deepcopy(self.state.objects.get((plural, name)))

    def names(self, plural: str) -> list[str]:
        with self.changed:
            return sorted(name for kind, name in self.state.objects if kind == plural)

    def add_log_lines(self, pod: str, *lines: str, end: bool = False) -> None:
        """Lines of a container, each with its own time."""
        with self.changed:
            log = self.state.logs.setdefault(pod, Log())
            for line in lines:
                log.lines.append((timestamp(), line))
            log.ended = log.ended or end
            self.changed.notify_all()

    def fail_requests(self, method: str, pattern: str, status: int, times: int = 1, **headers: str) -> None:
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        with self.changed:
            self.state.failures.append(Failure(method, pattern, status, times, named))

    def wait_for(self, found: Callable[[], Any], seconds: float = 20.0) -> Any:
        """Wait until something is true of the objects."""
        deadline = time.monotonic() + seconds
        with self.changed:
            while not (value := found()):
                left = deadline - time.monotonic()
                assert left > 0, "waited in vain"
                self.changed.wait(min(left, 0.2))
            return value


def timestamp() -> str:
    now = time.time_ns()
    seconds = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(now // 10**9))
    return f"{seconds}.{now % 10**9:09d}Z"


def make_client(url: str) -> Kube:
    """As `connect` makes one of a kubeconfig."""
    configuration = kubernetes.client.Configuration(host=url)
    configuration.api_key = {"authorization": f"Bearer {TOKEN}"}
    configuration.retries = False
    return Kube(kubernetes.client.ApiClient(configuration), "team", "lab")
