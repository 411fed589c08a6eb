"""The properties of a node that decide which wheels it can install."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Platform:
    """A version of CPython on Linux, with the machine and the C library."""

    python: str  # version of CPython, such as 3.11
    machine: str  # such as x86_64
    libc: str  # version of glibc

    @property
    def key(self) -> str:
        """Return a name for files, such as cp311-x86_64-glibc2.36."""
        return f"cp{self.python.replace('.', '')}-{self.machine}-glibc{self.libc}"

    @property
    def markers(self) -> dict[str, str]:
        """Return the variables of environment markers (PEP 508) on this platform."""
        return {
            "python_version": self.python,
            "python_full_version": f"{self.python}.0",
            "platform_machine": self.machine,
            "sys_platform": "linux",
            "platform_system": "Linux",
            "os_name": "posix",
            "implementation_name": "cpython",
            "platform_python_implementation": "CPython",
        }
