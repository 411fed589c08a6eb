"""The modules that a script needs from the environment of its ranks."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from orchestrator.errors import RequestError
from orchestrator.model.printable import one_line

HINT = (
    "Nothing was started. Your modules must be in the project and not be ignored; --project names another folder. "
    "Packages: --requirements, or `# /// script` in the script. Imports inside of try or a function are not checked."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Imports:
    """The modules that a script imports and that its project does not contain.

    Attributes:
        importers: the file that imports each module.
        source: the stack or the interpreter that should have them, such as `stack current`.
    """

    importers: Mapping[str, str]
    source: str

    def check(self, missing: Collection[str]) -> None:
        """Check that no module is missing; names that are not imported are ignored.

        Raises:
            RequestError: if one is missing.
        """
        modules: dict[str, list[str]] = {}
        for name, importer in self.importers.items():
            if name in missing:
                modules.setdefault(importer, []).append(name)
        if modules:
            files = "; ".join(f"{importer} imports {' and '.join(names)}" for importer, names in modules.items())
            raise RequestError(one_line(f"{files}, which {self.source} does not have."), hint=HINT)
