"""Third-party backends, from entry points of the group orch.backends and from stack files."""

from __future__ import annotations

from importlib.metadata import EntryPoint

from pydantic import Field, ValidationError

from orchestrator.errors import RequestError
from orchestrator.load.files import StrictModel
from orchestrator.model.process_group import Backend
from orchestrator.paths import entry_points

GROUP = "orch.backends"


class BackendTable(StrictModel):
    """A plug-in backend as data; orchestrator.model.process_group.Backend describes the fields."""

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
    """Return the backends of installed distributions by name.

    Raises:
        RequestError: if one is invalid.
    """
    backends = map(load_entry_point, entry_points().select(group=GROUP))
    return {backend.name: backend for backend in backends}


def load_entry_point(entry: EntryPoint) -> Backend:
    """Return the backend of an entry point, which names a dict so that a plug-in need not import orch.

    Raises:
        RequestError: if it is invalid.
    """
    source = f"entry point {entry.name} = {entry.value}"
    try:
        table = BackendTable.model_validate(entry.load())
    except (ImportError, AttributeError, ValidationError) as error:
        raise RequestError(
            f"The backend plug-in {entry.name} ({entry.value}) cannot be read: {error}",
            hint="Fix or uninstall the package that has it.",
        ) from None
    return table.backend(source)
