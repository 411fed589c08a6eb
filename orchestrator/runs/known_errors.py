"""Signatures of known errors in the logs of failed runs, each with its cause and a hint: known_errors.toml."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from orch_node.protocol import values

from orchestrator.files import tomllib

FILE = Path(__file__).with_suffix(".toml")

# Software that connects ranks, in a line of its log or in the path of a frame: torch.distributed's store, gloo, MPI's
# hydra, oneCCL, ssh. Neither a script in a folder `hydra` nor the package of that name is meant.
RENDEZVOUS = (
    r"\btorch\.distributed\.|-packages/torch/distributed/|\bc10d\b|socket has failed|\bGloo\b|/gloo/transport/"
    r"|-packages/oneccl_bindings_for_pytorch/|CCL_ERROR|\bHYD[A-Z]*_|\bhydra_|\bhydt_|\bmpiexec\b|\bmpirun\b|^ssh: "
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Signature:
    """Patterns that identify an error, with its cause and a hint.

    Attributes:
        name: the name of the error.
        patterns: regular expressions that are searched in a single line; the first that matches counts.
        cause: the cause of the error; `{1}` is replaced by the first group of the pattern.
        hint: what the user can do about it, with the same replacements.
        cause_on_gpus: the cause on nodes with GPUs, if it is another one.
        hint_on_gpus: the same for the hint.
        frame: a regular expression that the line or the file of the innermost frame of its traceback
            must match, so that an error of the script itself gets no explanation; with the same replacements.
        in_rendezvous: whether the line or that file must be of software that connects ranks.
        caller: a regular expression that the file and the function of one of the frames must match.
        from_script: whether one of the frames must be of the user's code.
        hides: the names of signatures whose errors are consequences of this one.
        may_be_harmless: whether scripts often continue after this error. If the exception that ended the
            rank is known, only that exception is explained by this signature.
    """

    name: str
    patterns: tuple[str, ...]
    cause: str
    hint: str
    cause_on_gpus: str = ""
    hint_on_gpus: str = ""
    frame: str = ""
    in_rendezvous: bool = False
    caller: str = ""
    from_script: bool = False
    hides: tuple[str, ...] = ()
    may_be_harmless: bool = False

    def search(self, line: str) -> re.Match[str] | None:
        """Return the match of the first pattern that matches a line, or None."""
        return next(filter(None, (re.search(pattern, line) for pattern in self.patterns)), None)

    def explanation(self, *, on_gpus: bool) -> tuple[str, str]:
        """Return the cause and the hint on nodes with or without GPUs."""
        if not on_gpus:
            return self.cause, self.hint
        return self.cause_on_gpus or self.cause, self.hint_on_gpus or self.hint


@cache
def known_signatures() -> tuple[Signature, ...]:
    """Return the signatures in the order in which explanations are shown: errors that cause other errors come first."""
    entries = tomllib.loads(FILE.read_text(encoding="utf-8"))["signatures"]
    return tuple(values.read(Signature, entry, FILE.name) for entry in entries)
