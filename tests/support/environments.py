"""Virtual environments of users, without orch's packages."""

from __future__ import annotations

import sys
import venv
from collections.abc import Collection
from pathlib import Path


def make_environment(folder: Path, *, without: Collection[str] | None = None) -> Path:
    """Create a virtual environment and return its folder of packages.

    Args:
        folder: its folder.
        without: link to all packages of this environment but those that begin so; None: to no package.
    """
    venv.create(folder, symlinks=True)
    site = f"lib/python{sys.version_info.major}.{sys.version_info.minor}/site-packages"
    for path in Path(sys.prefix, site).iterdir() if without is not None else ():
        if not path.name.startswith(tuple(without)) and path.suffix != ".pth":
            (folder / site / path.name).symlink_to(path)
    return folder / site
