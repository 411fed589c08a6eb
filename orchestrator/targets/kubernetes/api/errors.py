"""What the API of a cluster answers when it does not do what was asked, in the users' words."""

from __future__ import annotations

import json
import re

from orchestrator.errors import ConnectionLost, ExecuteError
from orchestrator.targets.kubernetes.api.retry import is_temporary

# In a refusal that is not about rights -> what to do.
ADMISSION = (
    ("violates PodSecurity", "The namespace's label pod-security.kubernetes.io/enforce says so."),
    ("exceeded quota", "`kubectl describe quota` shows what is left: smaller or fewer pods."),
)
ADMITTING = "A policy of the cluster says so: its administrator knows what it asks for."


# failed calling webhook "NAME": failed to call webhook: Post "https://SERVICE.NAMESPACE.svc:443/...
WEBHOOK = re.compile(r'failed calling webhook ".*https://(?P<service>[-\w]+)\.(?P<namespace>[-\w]+)\.svc\b')


class NotThere(ExecuteError):
    """The API has no such object."""

    advice = "Somebody has deleted it, or it is in another --k8s namespace= or --k8s context=."


class Expired(ExecuteError):
    """A watch asks for what the API has forgotten (410): list anew."""


class Refused(ExecuteError):
    """401 or 403: who asks is unknown, or may not."""


def words(error: Exception, where: str) -> ExecuteError:
    """The API's answer in the users' words, with what to do."""
    status = getattr(error, "status", 0)
    message = message_of(error)
    if status == 401:
        return Refused(
            f"The API of {where} does not know you: {message}.",
            hint="The token has expired, or is another cluster's: log in again, then "
            "`kubectl auth whoami`. A run that has been started goes on without that.",
        )
    if status == 403:
        return refused(message)
    if status == 404:
        return NotThere(f"{message}.", hint=hint_for_missing(message))
    if status == 409:
        return ExecuteError(
            f"Somebody else has made or manages it: {message}.",
            hint="Nothing was changed. Take another name, or ask who manages these fields.",
        )
    if status == 410:
        return Expired(f"{message}.")
    if is_temporary(error):
        if webhook := WEBHOOK.search(message):
            return webhook_failed(message, webhook)
        return ConnectionLost(
            f"The API of {where} fails: {message}.",
            hint="Try again when it responds. Runs that have started are not affected.",
        )
    return ExecuteError(
        f"The API refuses it: {message}.",
        hint="`orch train ... --dry-run -o yaml` shows what it is given, `kubectl explain` what it takes.",
    )


def webhook_failed(message: str, webhook: re.Match[str]) -> ExecuteError:
    """Return the error for an object that an operator should have judged, but does not respond."""
    service, namespace = webhook["service"], webhook["namespace"]
    return ExecuteError(
        f"An operator of the cluster does not respond: {message}.",
        hint=f"Nothing was created. `kubectl -n {namespace} get pods` shows whether the operator "
        f"behind the service {service} runs; its administrator restarts it.",
    )


def refused(message: str) -> Refused:
    """403: by a Role that lacks something, or by an admission that judges what is asked for."""
    if " cannot " in message:
        hint = "`orch k8s check` lists the rights that are needed."
        return Refused(f"Not allowed: {message}.", hint=hint)
    hint = next((hint for words, hint in ADMISSION if words in message), ADMITTING)
    return Refused(f"The cluster refuses it: {message}.", hint=hint)


def hint_for_missing(message: str) -> str:
    if match := re.match(r'namespaces "([^"]+)" not found', message):
        return f"`kubectl create namespace {match.group(1)}`; --k8s namespace=NAME names another."
    return ""


def connection_errors() -> tuple[type[Exception], ...]:
    from urllib3.exceptions import HTTPError

    return (HTTPError, OSError)


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
