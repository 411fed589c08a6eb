"""The types of what nodes say of themselves: strict, so that a word is a word and not a program.

A node is a machine that may be in other hands than this one. Its answers end in files of all nodes,
in commands and on a terminal.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, StringConstraints

from orchestrator.model.host_names import is_address, is_host, is_host_key, is_host_name, is_interface


class FromNode(BaseModel):
    """A value that a node has sent: exactly these keys, of exactly these types."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, allow_inf_nan=False)


def that(holds: Callable[[str], bool], what: str) -> AfterValidator:
    def check(text: str) -> str:
        if not holds(text):
            raise ValueError(f"this is no {what}")
        return text

    return AfterValidator(check)


LINE = 500  # letters; a longer one is cut by nobody who means well
HostName = Annotated[str, that(is_host_name, "host name (RFC 1123)")]
Host = Annotated[str, that(is_host, "host name or address")]
Address = Annotated[str, that(is_address, "IP address")]
Interface = Annotated[str, that(is_interface, "network interface")]
HostKey = Annotated[str, that(is_host_key, "host key (type and base64)")]
Line = Annotated[str, Field(max_length=LINE), that(str.isprintable, "line of printable text")]
Word = Annotated[str, StringConstraints(pattern=r"^[!-~]{1,200}$")]
# As facts.py normalizes it (PEP 503), which leaves no underscore; pip leaves folders with a tilde.
Package = Annotated[str, StringConstraints(pattern=r"^[!-^`-~]{1,200}$")]
Token = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.+-]{0,63}$")]
User = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9_][A-Za-z0-9_.@+\\$-]{0,255}$")]
Digest = Annotated[str, StringConstraints(pattern=r"^(?:[0-9a-f]{64})?$")]
NodePath = Annotated[
    str, Field(max_length=4096), StringConstraints(pattern=r"^/"), that(str.isprintable, "printable path")
]
Count = Annotated[int, Field(ge=0, lt=1 << 63)]
Number = Annotated[int, Field(ge=0, lt=1 << 20)]  # of a CPU, a core, a socket, a NUMA node
Port = Annotated[int, Field(ge=1, lt=1 << 16)]
Text = Annotated[str, Field(max_length=1 << 24)]  # a file of the node; looked at, handed on nowhere
