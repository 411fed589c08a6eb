"""The errors of a cluster's API, with messages and hints for users, and when to repeat a request."""

from __future__ import annotations

import json
import re
import time

from orchestrator.errors import ConnectionLost, ExecuteError

TEMPORARY_STATUSES = (429, 500, 502, 503, 504)
MAX_DELAY = 10.0
REFUSED_SECONDS = 30.0  # an API server that has just started knows neither roles nor tokens
SERIES_GAP_SECONDS = 10.0  # a refusal after a longer time without one starts a new series


class NotThere(ExecuteError):
    """The API has no such object."""

    default_hint = "It was deleted, or it is in another --k8s namespace= or --k8s context=."


class Expired(ExecuteError):
    """The API has forgotten the version from which a watch starts (410)."""


class Refused(ExecuteError):
    """The API does not know the user (401), or refuses the request (403)."""


def to_execute_error(error: Exception, cluster: str) -> ExecuteError:
    """Convert an error of the client, with a hint about what to do."""
    status = getattr(error, "status", 0)
    message = message_of(error)
    if status == 401:
        return Refused(
            f"Authentication with the API of {cluster} failed: {message}.",
            hint="The token has expired or belongs to another cluster. Log in again, and check with "
            "`kubectl auth whoami`. Runs that have already started are not affected.",
        )
    if status == 403:
        if " cannot " in message:  # a missing right, and no policy of the cluster
            hint = "`orch k8s role` prints a Role with all rights that orch needs."
            return Refused(f"Not allowed: {message}.", hint=hint)
        return Refused(f"The cluster refuses it: {message}.")
    if status == 404:
        return NotThere(f"{message}.", hint=hint_for_missing(message))
    if status == 409:
        return ExecuteError(
            f"Another user has created or manages the object: {message}.",
            hint="Nothing was changed. Use another name, or ask who manages these fields.",
        )
    if status == 410:
        return Expired(f"{message}.")
    if is_temporary(error):
        return ConnectionLost(
            f"The API of {cluster} fails: {message}.",
            hint="Try again when it responds. Runs that have started are not affected.",
        )
    return ExecuteError(
        f"The API refuses the object: {message}.",
        hint="`orch train ... --dry-run -o yaml` shows the object, `kubectl explain` the valid fields.",
    )


def hint_for_missing(message: str) -> str:
    if match := re.match(r'namespaces "([^"]+)" not found', message):
        return (
            f"Create it with `kubectl create namespace {match.group(1)}`, or choose another with --k8s namespace=NAME."
        )
    return ""


def connection_errors() -> tuple[type[Exception], ...]:
    from urllib3.exceptions import HTTPError

    return (HTTPError, OSError)


def message_of(error: Exception) -> str:
    """Return the message of the API, or of the connection."""
    body = getattr(error, "body", None)
    try:
        return str(json.loads(body)["message"]).rstrip(".") if body else reason_of(error)
    except (ValueError, KeyError, TypeError):
        return reason_of(error)


def reason_of(error: Exception) -> str:
    cause = getattr(error, "reason", None)
    return str(cause or error).rstrip(".")


def is_temporary(error: Exception) -> bool:
    """Return whether the same request may succeed if it is repeated."""
    return getattr(error, "status", 0) in (0, *TEMPORARY_STATUSES)


def retry_delay(error: Exception, attempts: int) -> float:
    """Return the seconds until the next attempt: as the API requests, or twice as long each time."""
    headers = getattr(error, "headers", None) or {}
    requested = str(headers.get("Retry-After", ""))
    return min(float(requested) if requested.isdigit() else 0.25 * 2**attempts, MAX_DELAY)


class RejectionTimer:
    """The time since which all repeated requests of one caller are refused."""

    def __init__(self) -> None:
        self.since = 0.0
        self.last: float | None = None

    def is_over(self) -> bool:
        """Count a refusal, and return whether the series of refusals has lasted too long."""
        now = time.monotonic()
        if self.last is None or now - self.last > SERIES_GAP_SECONDS:
            self.since = now
        self.last = now
        return now - self.since > REFUSED_SECONDS
