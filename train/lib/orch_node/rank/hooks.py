"""Call orch's functions when a script imports a module, calls a function, computes gradients or makes a step."""

from __future__ import annotations

import functools
import importlib.util
import sys
import time
from collections.abc import Callable, Iterator
from importlib.machinery import ModuleSpec
from types import ModuleType, SimpleNamespace
from typing import Any


def replace_function(owner: type | ModuleType, name: str, replacement: Callable[..., Any], *owners: ModuleType) -> None:
    """Replace a function by one that is called with the original function before the arguments.

    `owners` are further modules that have it; of two functions with one name, only one could be pickled.
    """
    original = getattr(owner, name)

    @functools.wraps(original)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        return replacement(original, *args, **kwargs)

    if isinstance(owner, ModuleType):  # pickle looks for a function in its module
        wrapper.__module__ = owner.__name__
    for module in (owner, *owners):
        setattr(module, name, wrapper)


def wrap(owner: type | ModuleType, name: str, before: Callable[..., None]) -> None:
    """Replace a function by one that first calls `before` with the same arguments."""

    def call_both(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        before(*args, **kwargs)
        return original(*args, **kwargs)

    replace_function(owner, name, call_both)


def after_import(name: str, function: Callable[[ModuleType], None]) -> None:
    """Call a function with a module right after its import, or now if it has been imported."""
    if name in sys.modules:
        function(sys.modules[name])
        return

    def find_spec(fullname: str, path: Any, target: ModuleType | None = None) -> ModuleSpec | None:
        if fullname != name:
            return None
        sys.meta_path.remove(finder)
        spec = importlib.util.find_spec(name)
        if spec is not None and spec.loader is not None:
            actions: tuple[Callable[[ModuleType], None], ...] = (spec.loader.exec_module, function)
            vars(spec.loader)["exec_module"] = lambda module: [action(module) for action in actions]
        return spec

    finder: Any = SimpleNamespace(find_spec=find_spec)
    sys.meta_path.insert(0, finder)


def wrap_later(module: str, path: str, before: Callable[..., None]) -> None:
    """Wrap a function of a module, or a method such as `CLASS.METHOD`, when the module is imported."""
    owner, _, name = path.rpartition(".")
    after_import(module, lambda imported: wrap(getattr(imported, owner) if owner else imported, name, before))


def watch_steps(before: Callable[..., object] | None = None, after: Callable[..., object] | None = None) -> bool:
    """Call functions, which torch.compile() does not trace, with an optimizer before and after each of its steps.

    Returns:
        Whether this is possible: torch 2.0 has no hooks for steps.
    """
    module: Any = importlib.import_module("torch.optim.optimizer")
    if not hasattr(module, "register_optimizer_step_pre_hook"):
        return False
    # Unlike torch.compiler.disable(), this imports torch._dynamo only when a hook runs. It sets an attribute, which
    # bound methods do not allow.
    not_compiled = getattr(module.torch, "_disable_dynamo", lambda hook: hook)
    for kind, hook in (("pre", before), ("post", after)):
        if hook:
            getattr(module, f"register_optimizer_step_{kind}_hook")(not_compiled(functools.partial(hook)))
    return True


def watch_gradients(
    torch: ModuleType, name: str, before: Callable[..., object], after: Callable[[float], object] = lambda _: None
) -> None:
    """Call `before` with the arguments of torch.autograd.backward() or grad(), and then `after` with its seconds.

    Iterators among the arguments, which can be read only once, become tuples. Code in torch.compile() is not watched.
    """
    is_compiling = getattr(getattr(torch, "compiler", None), "is_compiling", lambda: False)  # torch 2.0 has none

    def watched(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        if is_compiling():
            return original(*args, **kwargs)
        arguments = [as_sequence(value) for value in args]
        options = {key: as_sequence(value) for key, value in kwargs.items()}
        before(*arguments, **options)
        began = time.perf_counter()
        try:
            return original(*arguments, **options)
        finally:
            after(time.perf_counter() - began)

    replace_function(torch.autograd, name, watched)
    # TorchScript knows functions by their identity.
    torch.jit._builtins._register_builtin(getattr(torch.autograd, name), f"aten::{name}")


def as_sequence(value: Any) -> Any:
    return tuple(value) if isinstance(value, Iterator) else value
