"""Call a function on every rank of a run, and read its results."""

from __future__ import annotations

import functools
import inspect
import json
import pickle  # its data comes from the user, and goes to nodes only
import shutil
import sys
import sysconfig
import tempfile
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import cloudpickle

from orchestrator.errors import ExecuteError, RequestError
from orchestrator.operations.runs import fetch
from orchestrator.runs.fetch import FetchListener
from orchestrator.targets.interface import FetchRequest, RunHandle

RESULTS = "results.json"  # written by function_call.py
REGISTRY_LOCK = threading.Lock()  # cloudpickle has one registry for all threads


def write_call(folder: Path, function: Callable[..., object], args: Sequence[Any], kwargs: Mapping[str, Any]) -> Path:
    """Write a project that calls a function, and return its script.

    Args:
        folder: an empty folder.
        function: the function. It is pickled by value unless it is from an installed package.
        args: its arguments.
        kwargs: its arguments by name.

    Raises:
        RequestError: if the function or an argument cannot be pickled.
    """
    source = function.func if isinstance(function, functools.partial) else function
    try:
        call = pickled((function, tuple(args), dict(kwargs)), inspect.getmodule(source))
    except Exception as error:  # objects decide what they raise
        raise RequestError.about("pickling", error=error) from None
    script = folder / f"call_{getattr(source, '__name__', 'function').strip('<>')}.py"
    shutil.copyfile(Path(__file__).with_name("function_call.py"), script)
    (folder / "call.pickle").write_bytes(pickle.dumps((sys.version_info[:2], call)))
    package = Path(cloudpickle.__file__).parent
    shutil.copytree(package, folder / package.name, ignore=shutil.ignore_patterns("__pycache__"))
    return script


def pickled(value: object, module: ModuleType | None) -> bytes:
    """Return a pickled value; what is defined in the module is pickled by value, unless it is installed."""
    if module is None or module.__name__ == "__main__" or is_installed(module):
        return bytes(cloudpickle.dumps(value))
    with REGISTRY_LOCK:
        registered = module.__name__ in cloudpickle.list_registry_pickle_by_value()  # by the user
        cloudpickle.register_pickle_by_value(module)
        try:
            return bytes(cloudpickle.dumps(value))
        finally:
            if not registered:
                cloudpickle.unregister_pickle_by_value(module)


def is_installed(module: ModuleType) -> bool:
    """Return whether a module belongs to Python or to an installed package."""
    file = getattr(module, "__file__", None)
    folders = {sysconfig.get_path(name) for name in ("stdlib", "purelib", "platlib")}
    return file is None or any(Path(file).is_relative_to(folder) for folder in folders)


def read_results(handle: RunHandle) -> list[Any]:
    """Return the results of all ranks of a run that has succeeded.

    Raises:
        ExecuteError: if they cannot be copied, are damaged, or are those of fewer ranks.
    """
    run = handle.record.run_id
    with tempfile.TemporaryDirectory() as folder:
        request = FetchRequest(source="", destination=Path(folder), patterns=(RESULTS,))
        try:
            fetch(handle, request, FetchListener())
        except RequestError:
            raise ExecuteError.about("no-results", run=run) from None
        try:
            texts = json.loads((Path(folder) / RESULTS).read_bytes())
            results = [restore(json.loads(text)) for text in texts]
        except (OSError, ValueError, TypeError, RecursionError) as error:
            raise ExecuteError.about("unreadable-results", run=run, error=error) from None
    if len(results) != (ranks := len(handle.record.layout)):
        raise ExecuteError.about("incomplete-results", run=run, results=len(results), ranks=ranks)
    return results


def restore(value: Any) -> Any:
    """Return a result from the JSON that function_call.describe() makes of it.

    Raises:
        ValueError: if it is damaged.
        TypeError: if it is damaged.
    """
    if isinstance(value, list):
        return [restore(item) for item in value]
    if not isinstance(value, dict):
        return value
    ((kind, content),) = value.items()
    if kind == "dict":
        return {restore(key): restore(item) for key, item in content}
    return tuple(restore(item) for item in content)
