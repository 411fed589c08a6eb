"""Make wheels that pip accepts."""

from __future__ import annotations

import zipfile
from pathlib import Path

TAGS = "Wheel-Version: 1.0\nGenerator: t\nRoot-Is-Purelib: true\nTag: py3-none-any\n"


def make_wheel(folder: Path, name: str, version: str, *, requires: str = "", module: str = "") -> Path:
    """Write the smallest wheel that pip accepts.

    Args:
        folder: created if it is missing.
        name: of the package.
        version: of the package.
        requires: a package that it depends on.
        module: the content of a module in it.
    """
    folder.mkdir(exist_ok=True)
    base = f"{name.replace('-', '_')}-{version}"
    path = folder / f"{base}-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as wheel:
        metadata = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
        wheel.writestr(f"{base}.dist-info/METADATA", metadata + (f"Requires-Dist: {requires}\n" if requires else ""))
        wheel.writestr(f"{base}.dist-info/WHEEL", TAGS)
        wheel.writestr(f"{base}.dist-info/RECORD", "")
        if module:
            wheel.writestr(f"{name}.py", module)
    return path
