"""A Kubernetes cluster through its API. The only module that imports the client (1 s, 126 MB)."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

from orchestrator.errors import ConnectionLost, ExecuteError
from orchestrator.planning.manifest import Object
from orchestrator.targets.kubernetes.api.errors import Expired, NotThere, connection_errors, words
from orchestrator.targets.kubernetes.api.retry import is_temporary, retry_delay
from orchestrator.targets.kubernetes.manifests.names import MANAGER

Result = TypeVar("Result")
TIMEOUT = (10.0, 60.0)  # connecting, reading; seconds
STREAM_SECONDS = 300  # after which a watch is begun anew
QUIET_SECONDS = 330.0
TRIES = 5
CORE = {
    "ConfigMap": "configmaps",
    "Secret": "secrets",
    "Pod": "pods",
    "PersistentVolumeClaim": "persistentvolumeclaims",
    "Service": "services",
}
CUSTOM = {
    "PyTorchJob": "pytorchjobs",
    "MPIJob": "mpijobs",
    "TrainJob": "trainjobs",
    "TrainingRuntime": "trainingruntimes",
    "Job": "jobs",
}


class Kube:
    """One namespace of one cluster."""

    def __init__(self, client: Any, namespace: str, context: str | None) -> None:
        from kubernetes import client as kubernetes

        self.client = client
        self.namespace = namespace
        self.context = context
        self.tries = TRIES
        self.custom = kubernetes.CustomObjectsApi(client)
        self.failures: tuple[type[Exception], ...] = (kubernetes.ApiException, *connection_errors())

    # Reading.

    def request(
        self,
        method: str,
        path: str,
        *,
        query: dict[str, str] | None = None,
        body: Object | None = None,
        content_type: str = "application/json",
        timeout: tuple[float, float] = TIMEOUT,
    ) -> Any:
        """A raw response. Raises what the client raises; `attempt` makes words of it."""
        serialized = self.client.param_serialize(
            method,
            path,
            query_params=list((query or {}).items()),
            body=body,
            header_params={"Accept": "application/json", "Content-Type": content_type},
            auth_settings=["BearerToken"],
        )
        response = self.client.call_api(*serialized[:4], _request_timeout=timeout)
        if not 200 <= response.status < 300:
            raise self.failed(response)
        return response.response

    def failed(self, response: Any) -> Exception:
        from kubernetes import client as kubernetes

        raw = response.response
        error = kubernetes.ApiException(status=response.status, reason=response.reason)
        error.body = raw.data.decode(errors="replace")
        error.headers = raw.headers
        return error

    def get(self, path: str, **query: str) -> Object:
        """Raises NotThere, Refused, ConnectionLost, ExecuteError."""
        return self.attempt(lambda: as_json(self.request("GET", path, query=query)))

    def job(self, group: str, version: str, plural: str, name: str) -> Object:
        found: Any = self.attempt(
            lambda: self.custom.get_namespaced_custom_object(
                group, version, self.namespace, plural, name, _request_timeout=TIMEOUT
            )
        )
        return dict(found)

    def objects(self, kind: str, selector: str) -> list[Object]:
        """Core objects of the namespace, by labels."""
        found = self.get(self.core_path(kind), labelSelector=selector)
        return list(found.get("items") or [])

    def list_custom(self, group: str, version: str, plural: str, selector: str) -> list[Object]:
        found: Any = self.attempt(
            lambda: self.custom.list_namespaced_custom_object(
                group, version, self.namespace, plural, label_selector=selector, _request_timeout=TIMEOUT
            )
        )
        return list(found.get("items") or [])

    def events_of(self, name: str) -> list[Object]:
        """What the cluster says of an object, oldest first."""
        return self.events(f"involvedObject.name={name}")

    def events(self, selector: str) -> list[Object]:
        """Those of the namespace with these fields, oldest first."""
        path = f"/api/v1/namespaces/{self.namespace}/events"
        found = self.get(path, fieldSelector=selector).get("items") or []
        return sorted(found, key=lambda one: str(one.get("lastTimestamp") or ""))

    def watch_pods(self, selector: str) -> Iterator[tuple[str, Object]]:
        """(ADDED, MODIFIED or DELETED, pod) of the pods that there are and their changes, until the
        API ends the watch. Raises Expired, ConnectionLost, Refused."""
        path = self.core_path("Pod")
        listed = self.get(path, labelSelector=selector)
        for pod in listed.get("items") or ():
            yield "ADDED", pod
        query = {
            "labelSelector": selector,
            "watch": "true",
            "allowWatchBookmarks": "true",
            "resourceVersion": str(listed["metadata"]["resourceVersion"]),
            "timeoutSeconds": str(STREAM_SECONDS),
        }
        for line in self.lines(path, query):
            change = json.loads(line)
            if change["type"] == "ERROR":
                raise self.watch_error(change["object"])
            if change["type"] != "BOOKMARK":
                yield change["type"], change["object"]

    def watch_error(self, status: Object) -> ExecuteError:
        if status.get("code") == 410:
            return Expired(f"The watch is too old: {status.get('message')}.")
        return ConnectionLost(f"The watch ended: {status.get('message')}.")

    def log(self, pod: str, *, follow: bool, since: str | None) -> Iterator[str]:
        """Lines of a pod's log, each with its time."""
        query = {"timestamps": "true", "follow": str(follow).lower()}
        if since:
            query["sinceTime"] = since
        yield from self.lines(f"{self.core_path('Pod')}/{pod}/log", query)

    def lines(self, path: str, query: dict[str, str]) -> Iterator[str]:
        """Lines of an answer as they come; a last line without an end is left out."""
        timeout = (TIMEOUT[0], QUIET_SECONDS)
        response = self.attempt(lambda: self.request("GET", path, query=query, timeout=timeout))
        pending = b""
        try:
            for chunk in response.stream(1 << 16, decode_content=True):
                *whole, pending = (pending + chunk).split(b"\n")
                for line in whole:
                    yield line.decode(errors="replace")
        except connection_errors() as error:
            raise ConnectionLost(f"The API ended its answer: {error}.") from None
        finally:
            response.close()
            response.release_conn()

    # Changing.

    def apply(self, made: Object) -> None:
        """Server-side apply as the field manager `orch`. Raises ExecuteError."""
        self.applied(made)

    def applied(self, made: Object, *, dry_run: bool = False, manager: str = MANAGER) -> Object:
        """The object as the API has it then. Nothing that another manager owns is taken over."""
        path = f"{self.path_of(made)}/{made['metadata']['name']}"
        query = {"fieldManager": manager, "fieldValidation": "Strict"}
        if dry_run:
            query["dryRun"] = "All"
        body = {**made, "metadata": {**made["metadata"], "namespace": self.namespace}}
        with self.naming(made):
            return self.attempt(
                lambda: as_json(
                    self.request("PATCH", path, query=query, body=body, content_type="application/apply-patch+yaml")
                )
            )

    @contextmanager
    def naming(self, made: Object) -> Iterator[None]:
        """An API without such objects says no more than that there is no such page."""
        try:
            yield
        except NotThere as error:
            if made["kind"] in CORE or error.hint != NotThere.advice:
                raise
            raise ExecuteError(
                f"The cluster has no {made['kind']} {made['apiVersion']}: its CRD is missing.",
                hint="`orch k8s check` tells what brings it, and which kinds there are.",
            ) from None

    def create(self, path: str, body: Object) -> Object:
        """For questions to the API, such as what one may do."""
        return self.attempt(lambda: as_json(self.request("POST", path, body=body)))

    def delete(self, path: str, uid: str) -> None:
        """Delete that very object, and what it owns; one that is gone is no error."""
        body = {
            "kind": "DeleteOptions",
            "apiVersion": "v1",
            "propagationPolicy": "Background",
            "preconditions": {"uid": uid},
        }
        try:
            self.attempt(lambda: self.request("DELETE", path, body=body).release_conn())
        except NotThere:
            pass

    # Where things are, and what went wrong.

    def core_path(self, kind: str) -> str:
        return f"/api/v1/namespaces/{self.namespace}/{CORE[kind]}"

    def path_of(self, made: Object) -> str:
        if made["kind"] in CORE:
            return self.core_path(made["kind"])
        api, plural = made["apiVersion"], CUSTOM[made["kind"]]
        return f"/apis/{api}/namespaces/{self.namespace}/{plural}"

    def attempt(self, act: Callable[[], Result]) -> Result:
        """Do it, again where the API is busy; raises errors in the users' words."""
        for left in reversed(range(self.tries)):
            try:
                return act()
            except self.failures as error:
                if not left or not is_temporary(error):
                    raise words(error, self.context or "the cluster") from None
                time.sleep(retry_delay(error, self.tries - left - 1))
        raise AssertionError


def as_json(response: Any) -> Object:
    try:
        return dict(json.loads(response.data))
    finally:
        response.release_conn()
