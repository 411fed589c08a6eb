"""A Kubernetes cluster through its API. The only module that imports the client (1 s, 126 MB)."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

from orchestrator.errors import ConnectionLost, ExecuteError, RequestError
from orchestrator.kube.job import Object
from orchestrator.kube.names import MANAGER

Result = TypeVar("Result")
TIMEOUT = (10.0, 60.0)  # connecting, reading; seconds
STREAM_SECONDS = 300  # after which a watch is begun anew
QUIET_SECONDS = 330.0
TRIES = 5
LONGEST_WAIT = 10.0
PASSING = (429, 500, 502, 503, 504)
CORE = {
    "ConfigMap": "configmaps", "Secret": "secrets", "Pod": "pods",
    "PersistentVolumeClaim": "persistentvolumeclaims",
}  # fmt: skip
CUSTOM = {
    "PyTorchJob": "pytorchjobs", "MPIJob": "mpijobs", "TrainJob": "trainjobs",
    "TrainingRuntime": "trainingruntimes",
}  # fmt: skip


class NotThere(ExecuteError):
    """The API has no such object."""


class Expired(ExecuteError):
    """A watch asks for what the API has forgotten (410): list anew."""


class Refused(ExecuteError):
    """401 or 403: who asks is unknown, or may not."""


class Kube:
    """One namespace of one cluster."""

    def __init__(self, client: Any, namespace: str, context: str | None) -> None:
        from kubernetes import client as kubernetes

        self.client = client
        self.namespace = namespace
        self.context = context
        self.custom = kubernetes.CustomObjectsApi(client)
        self.failures: tuple[type[Exception], ...] = (
            kubernetes.ApiException,
            *connection_errors(),
        )

    # Reading.

    def request(
        self, method: str, path: str, *, query: dict[str, str] | None = None,
        body: Object | None = None, content_type: str = "application/json",
        timeout: tuple[float, float] = TIMEOUT,
    ) -> Any:  # fmt: skip
        """A raw response. Raises what the client raises; `attempt` makes words of it."""
        serialized = self.client.param_serialize(
            method, path, query_params=list((query or {}).items()), body=body,
            header_params={"Accept": "application/json", "Content-Type": content_type},
            auth_settings=["BearerToken"],
        )  # fmt: skip
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
                group, version, self.namespace, plural, label_selector=selector,
                _request_timeout=TIMEOUT,
            )
        )  # fmt: skip
        return list(found.get("items") or [])

    def events_of(self, name: str) -> list[Object]:
        """What the cluster says of an object, oldest first."""
        path = f"/api/v1/namespaces/{self.namespace}/events"
        found = self.get(path, fieldSelector=f"involvedObject.name={name}").get("items") or []
        return sorted(found, key=lambda one: str(one.get("lastTimestamp") or ""))

    def watch_pods(self, selector: str) -> Iterator[tuple[str, Object]]:
        """(ADDED, MODIFIED or DELETED, pod) of the pods that there are and their changes, until the
        API ends the watch. Raises Expired, ConnectionLost, Refused."""
        path = self.core_path("Pod")
        listed = self.get(path, labelSelector=selector)
        for pod in listed.get("items") or ():
            yield "ADDED", pod
        query = {
            "labelSelector": selector, "watch": "true", "allowWatchBookmarks": "true",
            "resourceVersion": str(listed["metadata"]["resourceVersion"]),
            "timeoutSeconds": str(STREAM_SECONDS),
        }  # fmt: skip
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

    def applied(self, made: Object, *, dry_run: bool = False) -> Object:
        """The object as the API has it then. Nothing that another manager owns is taken over."""
        path = f"{self.path_of(made)}/{made['metadata']['name']}"
        query = {"fieldManager": MANAGER, "fieldValidation": "Strict"}
        if dry_run:
            query["dryRun"] = "All"
        body = {**made, "metadata": {**made["metadata"], "namespace": self.namespace}}
        return self.attempt(
            lambda: as_json(
                self.request(
                    "PATCH", path, query=query, body=body,
                    content_type="application/apply-patch+yaml",
                )
            )
        )  # fmt: skip

    def create(self, path: str, body: Object) -> Object:
        """For questions to the API, such as what one may do."""
        return self.attempt(lambda: as_json(self.request("POST", path, body=body)))

    def delete(self, path: str, uid: str) -> None:
        """Delete that very object, and what it owns; one that is gone is no error."""
        body = {"kind": "DeleteOptions", "apiVersion": "v1", "propagationPolicy": "Background",
                "preconditions": {"uid": uid}}  # fmt: skip
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
        for left in reversed(range(TRIES)):
            try:
                return act()
            except self.failures as error:
                if not left or not passing(error):
                    raise self.words(error) from None
                time.sleep(pause(error, TRIES - left - 1))
        raise AssertionError

    def words(self, error: Exception) -> ExecuteError:
        status = getattr(error, "status", 0)
        message = message_of(error)
        if status == 401:
            return Refused(
                f"The API of {self.context or 'the cluster'} does not know you: {message}.",
                hint="The token has expired, or is another cluster's: log in again, then "
                "`kubectl auth whoami`. A run that has been started goes on without that.",
            )
        if status == 403:
            return Refused(
                f"Not allowed: {message}.",
                hint="`orch k8s check` lists the rights that are needed.",
            )
        if status == 404:
            return NotThere(f"{message}.")
        if status == 409:
            return ExecuteError(
                f"Somebody else has it: {message}.",
                hint="Nothing was changed. Another name, or ask the manager of these fields.",
            )
        if status == 410:
            return Expired(f"{message}.")
        if not status or status in PASSING:
            return ConnectionLost(f"The API of {self.context or 'the cluster'} fails: {message}.")
        return ExecuteError(f"The API refuses it: {message}.")


def connect(context: str | None = None, namespace: str | None = None) -> Kube:
    """By the kubeconfig, or as a pod of the cluster. Raises RequestError."""
    try:
        import kubernetes.config
    except ImportError:
        raise RequestError(
            "--on k8s needs the package `kubernetes`, which is not installed.",
            hint="pip install 'orch[k8s]'",
        ) from None
    config: Any = kubernetes.config
    configuration = kubernetes.client.Configuration()
    configuration.retries = False
    configuration.connection_pool_maxsize = 64
    try:
        chosen, own = named(config, context)
        config.load_kube_config(context=chosen, client_configuration=configuration)
    except (config.ConfigException, OSError) as error:
        if context is not None or not inside(config, configuration):
            raise RequestError(
                f"No cluster is configured: {error}.",
                hint="KUBECONFIG or ~/.kube/config names it; --k8s context=NAME chooses.",
            ) from None
        chosen, own = "this cluster", own_namespace()
    return Kube(kubernetes.client.ApiClient(configuration), namespace or own, chosen)


def named(config: Any, context: str | None) -> tuple[str, str]:
    """(context, its namespace) of the kubeconfig."""
    contexts, current = config.list_kube_config_contexts()
    found = next((one for one in contexts if one["name"] == context), None) if context else current
    if found is None:
        names = ", ".join(one["name"] for one in contexts)
        raise config.ConfigException(f"there is no context '{context}', only {names}")
    return found["name"], found["context"].get("namespace") or "default"


def inside(config: Any, configuration: Any) -> bool:
    try:
        config.load_incluster_config(client_configuration=configuration)
    except config.ConfigException:
        return False
    return True


def own_namespace() -> str:
    try:
        with open("/var/run/secrets/kubernetes.io/serviceaccount/namespace") as file:
            return file.read().strip()
    except OSError:
        return "default"


def connection_errors() -> tuple[type[Exception], ...]:
    from urllib3.exceptions import HTTPError

    return (HTTPError, OSError)


def passing(error: Exception) -> bool:
    """Whether it may be gone the next time."""
    return getattr(error, "status", 0) in (0, *PASSING)


def pause(error: Exception, tried: int) -> float:
    """Seconds: what the API asks for, else twice as long each time."""
    headers = getattr(error, "headers", None) or {}
    asked = str(headers.get("Retry-After", ""))
    return min(float(asked) if asked.isdigit() else 0.25 * 2**tried, LONGEST_WAIT)


def message_of(error: Exception) -> str:
    """The API's own message, or the connection's."""
    body = getattr(error, "body", None)
    try:
        return str(json.loads(body)["message"]).rstrip(".") if body else reason_of(error)
    except (ValueError, KeyError, TypeError):
        return reason_of(error)


def reason_of(error: Exception) -> str:
    cause = getattr(error, "reason", None)
    return str(cause or error).rstrip(".")


def as_json(response: Any) -> Object:
    try:
        return dict(json.loads(response.data))
    finally:
        response.release_conn()
