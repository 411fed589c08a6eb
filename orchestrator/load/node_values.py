"""Strict types of the values that nodes send.

Somebody else may control a node, and its values are written into files and commands of all nodes and printed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, StringConstraints

from orchestrator.model.host_names import is_address, is_host, is_host_key, is_host_name, is_interface


class FromNode(BaseModel):
    """A value sent by a node: exactly these keys, of exactly these types."""

    model_config = ConfigDict(defer_build=True, extra="forbid", strict=True, frozen=True, allow_inf_nan=False)


def satisfies(predicate: Callable[[str], bool], expected: str) -> AfterValidator:
    def check(text: str) -> str:
        if not predicate(text):
            raise ValueError(f"not a valid {expected}")
        return text

    return AfterValidator(check)


MAX_LINE = 500  # characters; honest nodes send fewer
HostName = Annotated[str, satisfies(is_host_name, "host name (RFC 1123)")]
Host = Annotated[str, satisfies(is_host, "host name or address")]
Address = Annotated[str, satisfies(is_address, "IP address")]
Interface = Annotated[str, satisfies(is_interface, "network interface")]
HostKey = Annotated[str, satisfies(is_host_key, "host key (type and base64)")]
Line = Annotated[str, Field(max_length=MAX_LINE), satisfies(str.isprintable, "line of printable text")]
Word = Annotated[str, StringConstraints(pattern=r"^[!-~]{1,200}$")]
# Normalized by facts.py (PEP 503), so without underscores; pip may leave folders with a tilde.
Package = Annotated[str, StringConstraints(pattern=r"^[!-^`-~]{1,200}$")]
LibcVersion = Annotated[str, StringConstraints(pattern=r"^(?:[0-9]{1,3}[.][0-9]{1,3})?$")]
Token = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.+-]{0,63}$")]
User = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9_][A-Za-z0-9_.@+\\$-]{0,255}$")]
Digest = Annotated[str, StringConstraints(pattern=r"^(?:[0-9a-f]{64})?$")]
NodePath = Annotated[
    str, Field(max_length=4096), StringConstraints(pattern=r"^/"), satisfies(str.isprintable, "printable path")
]
Count = Annotated[int, Field(ge=0, lt=1 << 63)]
Number = Annotated[int, Field(ge=0, lt=1 << 20)]  # the number of a CPU, core, socket or NUMA node
Port = Annotated[int, Field(ge=1, lt=1 << 16)]
Text = Annotated[str, Field(max_length=1 << 24)]  # a file of the node; inspected, but not passed on
