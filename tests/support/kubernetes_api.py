"""Run a small API server of Kubernetes in this process, with the wire format of Kubernetes over HTTP.

The server stores objects, applies patches, lists objects, sends logs of pods, runs `exec` over a websocket, and fails
requests on demand.
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

from orchestrator.targets.kubernetes.client import KubernetesClient
from tests.support.kubernetes_http import KINDS, TOKEN, Handler, Json

NAMESPACE = "team"
GROUPS = {
    "kubeflow.org": {"v1": ["pytorchjobs"]},
    "batch": {"v1": ["jobs"]},
    "trainer.kubeflow.org": {"v1alpha1": ["trainjobs", "trainingruntimes"]},
}


@dataclass
class Log:
    """The log of a container."""

    lines: list[tuple[str, str]] = field(default_factory=list)  # (time, text)
    ended: bool = False


@dataclass
class Failure:
    """A status that the server returns for the next `times` requests that match the method and the pattern."""

    method: str
    pattern: str
    status: int
    times: int = 1
    headers: dict[str, str] = field(default_factory=dict)


@dataclass
class State:
    """The objects and settings of the server. Access is protected by Api.changed."""

    objects: dict[tuple[str, str], Json] = field(default_factory=dict)  # (plural, name)
    logs: dict[str, Log] = field(default_factory=dict)
    failures: list[Failure] = field(default_factory=list)
    requests: list[tuple[str, str]] = field(default_factory=list)
    version: int = 100
    drop_streams: int = 0  # number of logs that the server ends in the middle of a chunk
    grace_seconds: float = 0.0  # for which a pod is Terminating
    break_execs: int = 0  # number of `exec`s whose connection ends without the exit code
    role: set[tuple[str, str, str]] | None = None  # (verb, group, resource) that the user's Role allows; None: all
    used_permissions: set[tuple[str, str, str]] = field(default_factory=set)
    denied_permissions: set[tuple[str, str]] = field(default_factory=set)  # (verb, resource)
    groups: dict[str, dict[str, list[str]]] = field(default_factory=lambda: copy.deepcopy(GROUPS))


class Api:
    """The API server, which runs inside of `with Api() as api`."""

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

    def write_kubeconfig(self, path: Path) -> Path:
        return write_kubeconfig(path, {"server": self.url}, TOKEN)

    def put(self, plural: str, value: Json) -> Json:
        """Create or replace an object, as a controller does, and return it."""
        with self.changed:
            key = (plural, value["metadata"]["name"])
            self.state.version += 1
            metadata = {
                "uid": str(uuid.uuid4()),
                "namespace": "team",
                "creationTimestamp": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
                **self.state.objects.get(key, {}).get("metadata", {}),
                **value["metadata"],
                "resourceVersion": str(self.state.version),
            }
            stored = {**value, "kind": KINDS[plural], "metadata": metadata}
            self.state.objects[key] = stored
            self.changed.notify_all()
            return stored

    def remove(self, plural: str, name: str) -> Json | None:
        with self.changed:
            removed = self.state.objects.pop((plural, name), None)
            self.changed.notify_all()
            return removed

    def terminate(self, name: str) -> None:
        """Delete a pod as the kubelet does, after it was Terminating for the grace time."""
        with self.changed:
            pod = self.state.objects["pods", name]
            if "deletionTimestamp" not in pod["metadata"]:
                metadata = {**pod["metadata"], "deletionTimestamp": timestamp()[:19] + "Z"}
                self.put("pods", {**pod, "metadata": metadata})
                threading.Timer(self.state.grace_seconds, self.remove, ["pods", name]).start()

    def collect(self, uid: str) -> None:
        """Delete all objects that a deleted object owns, like Kubernetes' garbage collector."""
        with self.changed:
            dependents = [
                key
                for key, value in self.state.objects.items()
                if any(owner["uid"] == uid for owner in value["metadata"].get("ownerReferences", ()))
            ]
            for plural, name in dependents:
                self.remove(plural, name)

    def get(self, plural: str, name: str) -> Json | None:
        with self.changed:
            return copy.deepcopy(self.state.objects.get((plural, name)))

    def names(self, plural: str) -> list[str]:
        with self.changed:
            return sorted(name for kind, name in self.state.objects if kind == plural)

    def add_log_lines(self, pod: str, *lines: str, end: bool = False) -> None:
        """Add lines to the log of a pod, each with its own time, and end the log if `end` is set."""
        with self.changed:
            log = self.state.logs.setdefault(pod, Log())
            for line in lines:
                log.lines.append((timestamp(), line))
            log.ended = log.ended or end
            self.changed.notify_all()

    def fail_requests(self, method: str, pattern: str, status: int, times: int = 1, **headers: str) -> None:
        """Return a status, with these headers, for the next `times` requests whose path matches the pattern."""
        http_headers = {name.replace("_", "-"): value for name, value in headers.items()}
        with self.changed:
            self.state.failures.append(Failure(method, pattern, status, times, http_headers))

    def wait_for(self, find: Callable[[], Any], seconds: float = 20.0) -> Any:
        """Wait until a function of the objects returns a true value, and return the value."""
        deadline = time.monotonic() + seconds
        with self.changed:
            while not (value := find()):
                remaining_seconds = deadline - time.monotonic()
                assert remaining_seconds > 0, f"not within {seconds:.0f} s"
                self.changed.wait(min(remaining_seconds, 0.2))
            return value


def write_kubeconfig(path: Path, cluster: Json, token: str) -> Path:
    """Write the kubeconfig of a user who has this token for a cluster, and return its path."""
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "lab",
        "clusters": [{"name": "lab", "cluster": cluster}],
        "users": [{"name": "me", "user": {"token": token}}],
        "contexts": [{"name": "lab", "context": {"cluster": "lab", "user": "me", "namespace": NAMESPACE}}],
    }
    path.write_text(yaml.safe_dump(config))
    return path


def timestamp() -> str:
    """Return the current time as in the logs of Kubernetes, in nanoseconds."""
    now = time.time_ns()
    seconds = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(now // 10**9))
    return f"{seconds}.{now % 10**9:09d}Z"


def make_client(url: str) -> KubernetesClient:
    """Return a client as `connect` makes it from a kubeconfig."""
    configuration = kubernetes.client.Configuration(host=url)
    configuration.api_key = {"authorization": f"Bearer {TOKEN}"}
    configuration.retries = False
    return KubernetesClient(kubernetes.client.ApiClient(configuration), "team", "lab")
