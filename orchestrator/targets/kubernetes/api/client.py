"""Access a Kubernetes cluster through its API.

The client package is imported only when it is used, because that takes 1 s and 126 MB.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

from orchestrator.errors import ConnectionLost, ExecuteError
from orchestrator.planning.plan import Object
from orchestrator.targets.kubernetes.api.errors import (
    Expired,
    NotThere,
    connection_errors,
    is_temporary,
    retry_delay,
    to_execute_error,
)
from orchestrator.targets.kubernetes.manifests.names import MANAGER

Result = TypeVar("Result")
TIMEOUT = (10.0, 60.0)  # connecting, reading; seconds
STREAM_SECONDS = 300  # after which a watch is started again
QUIET_SECONDS = 330.0
TRIES = 5
CORE = {
    "ConfigMap": "configmaps",
    "Secret": "secrets",
    "Pod": "pods",
    "PersistentVolumeClaim": "persistentvolumeclaims",
    "Service": "services",
}
CUSTOM = {"PyTorchJob": "pytorchjobs", "TrainJob": "trainjobs", "TrainingRuntime": "trainingruntimes", "Job": "jobs"}


class KubernetesClient:
    """A namespace of a cluster."""

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
        """Send a request once, and return the raw response or raise the client's errors."""
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
            raise self.api_error(response)
        return response.response

    def api_error(self, response: Any) -> Exception:
        from kubernetes import client as kubernetes

        raw = response.response
        error = kubernetes.ApiException(status=response.status, reason=response.reason)
        error.body = raw.data.decode(errors="replace")
        error.headers = raw.headers
        return error

    def get(self, path: str, **query: str) -> Object:
        """Return the object at a path.

        Raises:
            NotThere: if there is none.
            Refused: if the user may not read it.
            ConnectionLost: if the API does not respond.
            ExecuteError: for all other errors.
        """
        return self.attempt(lambda: as_json(self.request("GET", path, query=query)))

    def job(self, group: str, version: str, plural: str, name: str) -> Object:
        response: Any = self.attempt(
            lambda: self.custom.get_namespaced_custom_object(
                group, version, self.namespace, plural, name, _request_timeout=TIMEOUT
            )
        )
        return dict(response)

    def objects(self, kind: str, selector: str) -> list[Object]:
        """Return the core objects of the namespace with these labels."""
        response = self.get(self.core_path(kind), labelSelector=selector)
        return list(response.get("items") or [])

    def list_custom(self, group: str, version: str, plural: str, selector: str) -> list[Object]:
        response: Any = self.attempt(
            lambda: self.custom.list_namespaced_custom_object(
                group, version, self.namespace, plural, label_selector=selector, _request_timeout=TIMEOUT
            )
        )
        return list(response.get("items") or [])

    def events_of(self, name: str) -> list[Object]:
        """Return the events about an object, oldest first."""
        return self.events(f"involvedObject.name={name}")

    def events(self, selector: str) -> list[Object]:
        """Return the events of the namespace with these fields, oldest first."""
        path = f"/api/v1/namespaces/{self.namespace}/events"
        items = self.get(path, fieldSelector=selector).get("items") or []
        return sorted(items, key=lambda event: str(event.get("lastTimestamp") or ""))

    def watch_pods(self, selector: str) -> Iterator[tuple[str, Object]]:
        """Yield (ADDED, MODIFIED or DELETED, pod) until the API ends the watch.

        Raises:
            Expired: if the watch must be started again.
            ConnectionLost: if the API does not respond.
            Refused: if the user may not watch pods.
        """
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

    def log(self, pod: str, *, follow: bool, since: str | None, tail: int | None = None) -> Iterator[str]:
        """Yield the lines of a pod's log, each with its time; with `tail` only so many at its end."""
        query = {"timestamps": "true", "follow": str(follow).lower()}
        if since:
            query["sinceTime"] = since
        if tail is not None:
            query["tailLines"] = str(tail)
        yield from self.lines(f"{self.core_path('Pod')}/{pod}/log", query)

    def lines(self, path: str, query: dict[str, str]) -> Iterator[str]:
        """Yield the lines of a response as they come, without an incomplete last line."""
        timeout = (TIMEOUT[0], QUIET_SECONDS)
        response = self.attempt(lambda: self.request("GET", path, query=query, timeout=timeout))
        pending = b""
        try:
            for chunk in response.stream(1 << 16, decode_content=True):
                *lines, pending = (pending + chunk).split(b"\n")
                for line in lines:
                    yield line.decode(errors="replace")
        except connection_errors() as error:
            raise ConnectionLost(f"The API ended its response: {error}.") from None
        finally:
            response.close()
            response.release_conn()

    # Changing.

    def apply(self, manifest: Object) -> None:
        """Create or change an object by server-side apply.

        Raises:
            ExecuteError: if the API refuses it.
        """
        self.apply_object(manifest)

    def apply_object(self, manifest: Object, *, dry_run: bool = False, manager: str = MANAGER) -> Object:
        """Apply an object, and return it as the API has it.

        Fields of other managers are not taken over.
        """
        path = f"{self.path_of(manifest)}/{manifest['metadata']['name']}"
        query = {"fieldManager": manager, "fieldValidation": "Strict"}
        if dry_run:
            query["dryRun"] = "All"
        body = {**manifest, "metadata": {**manifest["metadata"], "namespace": self.namespace}}
        with self.explaining_missing_kind(manifest):
            return self.attempt(
                lambda: as_json(
                    self.request("PATCH", path, query=query, body=body, content_type="application/apply-patch+yaml")
                )
            )

    @contextmanager
    def explaining_missing_kind(self, manifest: Object) -> Iterator[None]:
        """Replace the error of an API that does not have the kind of an object."""
        try:
            yield
        except NotThere as error:
            if manifest["kind"] in CORE or error.hint != NotThere.default_hint:
                raise
            raise ExecuteError(
                f"The cluster has no {manifest['kind']} {manifest['apiVersion']}: its CRD is missing.",
                hint="`orch k8s check` shows what installs it, and which kinds the cluster has.",
            ) from None

    def delete(self, path: str, uid: str) -> None:
        """Delete the object with this uid, and what it owns, unless it is already gone."""
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

    # Paths and errors.

    def core_path(self, kind: str) -> str:
        return f"/api/v1/namespaces/{self.namespace}/{CORE[kind]}"

    def path_of(self, manifest: Object) -> str:
        if manifest["kind"] in CORE:
            return self.core_path(manifest["kind"])
        api, plural = manifest["apiVersion"], CUSTOM[manifest["kind"]]
        return f"/apis/{api}/namespaces/{self.namespace}/{plural}"

    def attempt(self, act: Callable[[], Result]) -> Result:
        """Call a function, repeat it after temporary errors, and convert its errors."""
        for remaining in reversed(range(self.tries)):
            try:
                return act()
            except self.failures as error:
                if not remaining or not is_temporary(error):
                    raise to_execute_error(error, self.context or "the cluster") from None
                time.sleep(retry_delay(error, self.tries - remaining - 1))
        raise AssertionError


def as_json(response: Any) -> Object:
    try:
        return dict(json.loads(response.data))
    finally:
        response.release_conn()
