"""A wheel of C++ fits one torch. Say so in words, before the loader says `undefined symbol`."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version

from . import _built

_CURE = "bring both of one stack: `orch setup`, `orch provision` on nodes, `orch image build`"


def _minor(text: str) -> str:
    return ".".join(text.split("+")[0].split(".")[:2])


def same_torch() -> None:
    """Raise ImportError unless the installed torch is of the release this wheel was built for."""
    try:
        here = version("torch")
    except PackageNotFoundError:
        raise ImportError(
            f"oneccl_bind_pt was built for torch {_minor(_built.TORCH)}, and here is no torch: " + _CURE
        ) from None
    if _minor(here) != _minor(_built.TORCH):
        raise ImportError(
            f"oneccl_bind_pt was built for torch {_minor(_built.TORCH)}, this is {_minor(here)}: " + _CURE
        )


def explained(error: ImportError) -> ImportError:
    """The loader's complaint about our extension, with the cure where we know it."""
    if "libhwloc" in str(error):
        return ImportError(f"{error}: `pip install tcmlib` or `apt install libhwloc15` brings it")
    if "undefined symbol" in str(error):
        return ImportError(
            f"oneccl_bind_pt was built for torch {_built.TORCH}, and this torch differs from it: {_CURE} ({error})"
        )
    return error
