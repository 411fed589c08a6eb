"""Check that the installed torch is the one that the C++ extension was built for.

Otherwise the loader would only report an undefined symbol.
"""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version

from . import _built

_HINT = "Install both from one stack: `orch setup`, `orch provision` on nodes, `orch image build`"


def _minor(release: str) -> str:
    return ".".join(release.split("+")[0].split(".")[:2])


def check_torch() -> None:
    """Raise ImportError unless the installed torch has the release that this wheel was built for."""
    built_for = f"oneccl_bind_pt was built for torch {_minor(_built.TORCH)}, but"
    try:
        installed = _minor(version("torch"))
    except PackageNotFoundError:
        raise ImportError(f"{built_for} torch is not installed. {_HINT}") from None
    if installed != _minor(_built.TORCH):
        raise ImportError(f"{built_for} torch {installed} is installed. {_HINT}")


def add_hint(error: ImportError) -> ImportError:
    """Return the loader's error about the extension with a hint, if the cause is known."""
    if "libhwloc" in str(error):
        return ImportError(f"{error}. Install libhwloc: `pip install tcmlib` or `apt install libhwloc15`")
    if "undefined symbol" in str(error):
        return ImportError(
            f"oneccl_bind_pt was built for torch {_built.TORCH}, but the installed torch differs from it. "
            f"{_HINT} ({error})"
        )
    return error
