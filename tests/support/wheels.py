"""Make wheels that pip accepts."""

from __future__ import annotations

import base64
import hashlib
import zipfile
from collections.abc import Sequence
from pathlib import Path

from tests.support.files import write_files

HEADER = "Wheel-Version: 1.0\nGenerator: t\nRoot-Is-Purelib: true\n"
BUILD = "[build-system]\nrequires = []\nbuild-backend = 'copy_wheel'\nbackend-path = ['.']\n"
COPY_WHEEL = "import shutil\ndef build_wheel(to, *_):\n    return shutil.copy(NAME, to)[len(to) + 1:]\nNAME = '%s'"


def make_wheel(
    folder: Path, name: str, version: str, *, requires: Sequence[str] = (), module: str = "", tag: str = "py3-none-any"
) -> Path:
    """Write the smallest wheel that pip accepts.

    Args:
        folder: created if it is missing.
        name: of the package.
        version: of the package.
        requires: the packages that it depends on.
        module: the content of a module in it.
        tag: the platform that it is for.
    """
    folder.mkdir(exist_ok=True)
    base = f"{name.replace('-', '_')}-{version}"
    path = folder / f"{base}-{tag}.whl"
    metadata = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
    files = {
        f"{base}.dist-info/METADATA": metadata + "".join(f"Requires-Dist: {item}\n" for item in requires),
        f"{base}.dist-info/WHEEL": f"{HEADER}Tag: {tag}\n",
    }
    files |= {f"{name}.py": module} if module else {}
    record = f"{base}.dist-info/RECORD"
    rows = "".join(f"{file},{record_digest(content.encode())},{len(content)}\n" for file, content in files.items())
    with zipfile.ZipFile(path, "w") as wheel:
        for file, content in {**files, record: f"{rows}{record},,\n"}.items():
            wheel.writestr(file, content)
    return path


def make_project(folder: Path, name: str, *, module: str = "") -> Path:
    """Write a project whose build backend copies a wheel, so that building needs no index; return its folder."""
    wheel = make_wheel(folder, name, "1.0", module=module)
    project = f'[project]\nname = "{name}"\nversion = "1.0"\n'
    return write_files(folder, {"pyproject.toml": project + BUILD, "copy_wheel.py": COPY_WHEEL % wheel.name})


def index_variables(folder: Path) -> dict[str, str]:
    """Return the variables that make pip, and so orch, use only the wheels of a folder."""
    return {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(folder)}


def record_digest(content: bytes) -> str:
    """Return the digest of a file as in the RECORD of a wheel."""
    digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=")
    return f"sha256={digest.decode()}"
