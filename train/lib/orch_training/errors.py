"""The one error that recipes show to people."""

from __future__ import annotations


class RecipeError(Exception):
    """What is wrong and what to do, in one sentence. `shared`: all ranks raise the same one."""

    def __init__(self, message: str, *, code: int = 1, shared: bool = False) -> None:
        super().__init__(message)
        self.code = code
        self.shared = shared


class ArgumentError(RecipeError):
    """A wrong command line: exit code 2. Every rank has the same one."""

    def __init__(self, message: str) -> None:
        super().__init__(message, code=2, shared=True)
