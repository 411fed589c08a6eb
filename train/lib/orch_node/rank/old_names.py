"""The name by which scripts knew orch before: it still works, with a note, for one release."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType

import orch_node

OLD = "rank_events"


class OldNames(MetaPathFinder, Loader):
    """Asked last: a module of the user's that is called so is found before."""

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        return ModuleSpec(name, self) if name == OLD else None

    def exec_module(self, module: ModuleType) -> None:
        print(
            f"orch: `from {OLD} import report` is `from orch_node import report` now; the old name "
            "goes with the next release.",
            file=sys.stderr,
        )
        vars(module).update(report=orch_node.report, note=orch_node.note)


def install() -> None:
    sys.meta_path.append(OldNames())
