"""Backends of third parties: entry points of the group orch.backends, tables of stack files."""

from __future__ import annotations

from importlib.metadata import EntryPoint, entry_points

from pydantic import Field, ValidationError

from orchestrator.errors import RequestError
from orchestrator.load.files import StrictModel
from orchestrator.model.process_group import Backend

GROUP = "orch.backends"


class BackendTable(StrictModel):
    """A plug-in as data; the fields mean what orchestrator.backend.Backend says."""

    name: str
    summary: str
    module: str = ""
    env: dict[str, str] = Field(default_factory=dict)
    requirements: dict[str, str] = Field(default_factory=dict)
    gpu: bool = False
    advice: str = ""

    def backend(self, source: str) -> Backend:
        values = {**self.model_dump(), "env": tuple(self.env.items()), "source": source}
        return Backend(**values)


def plugins() -> dict[str, Backend]:
    """Name -> backend, of all distributions beside orch. Raises RequestError for a broken one."""
    found = (of_entry_point(entry) for entry in entry_points(group=GROUP))
    return {backend.name: backend for backend in found}


def of_entry_point(entry: EntryPoint) -> Backend:
    """The entry point names a dict: a plug-in need not import anything of orch."""
    source = f"entry point {entry.name} = {entry.value}"
    try:
        table = BackendTable.model_validate(entry.load())
    except (ImportError, AttributeError, ValidationError) as error:
        raise RequestError(
            f"The backend plug-in {entry.name} ({entry.value}) cannot be read: {error}",
            hint="Repair or uninstall it; docs/how-to/backends.md says what it has to be.",
        ) from None
    return table.backend(source)
