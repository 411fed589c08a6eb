"""Estimate the remaining time of a phase, in the same way for all displays of progress."""

from __future__ import annotations

MAX_SECONDS = 1e9  # a longer estimate comes from a damaged event


def remaining_seconds(seconds: float, *, first: float, step: float, steps: float) -> float | None:
    """Estimate the seconds until the last step, from the mean time of the steps so far.

    Return None before the first step, after the last one and for impossible values.

    Args:
        seconds: the time since step `first`.
        first: the step that this process began with.
        step: the newest finished step.
        steps: the last step.
    """
    if not first < step < steps or seconds <= 0:
        return None
    remaining = seconds / (step - first) * (steps - step)
    return remaining if remaining < MAX_SECONDS else None


def format_seconds(seconds: float) -> str:
    """Return a duration as tqdm shows it: 02:05, or 1:02:05 from an hour on."""
    minutes, whole_seconds = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{whole_seconds:02}" if hours else f"{minutes:02}:{whole_seconds:02}"
