"""The errors that recipes print."""

from __future__ import annotations


class RecipeError(Exception):
    """An error with what is wrong and what to do; `shared` means that all ranks raise the same error."""

    def __init__(self, message: str, *, code: int = 1, shared: bool = False) -> None:
        super().__init__(message)
        self.code = code
        self.shared = shared


class ArgumentError(RecipeError):
    """A wrong command line: exit code 2, the same error on all ranks."""

    def __init__(self, message: str) -> None:
        super().__init__(message, code=2, shared=True)
