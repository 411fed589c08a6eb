"""Process-group backends as data: a name, the module that registers it, what it needs."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Backend:
    """A torch.distributed backend. `module` is imported by each rank before the group is made."""

    name: str
    summary: str
    module: str = ""
    env: tuple[tuple[str, str], ...] = ()


BACKENDS = {
    "gloo": Backend(name="gloo", summary="part of PyTorch, over TCP"),
}
