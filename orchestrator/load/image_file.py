"""An image's file, as `docker save` and `orch image save` write it: which image is in it."""

from __future__ import annotations

import json
import tarfile
from dataclasses import dataclass
from pathlib import Path

from orchestrator.errors import RequestError

HINT = "`orch image save FILE.tar` or `docker save --output FILE.tar NAME` writes one."


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageFile:
    """`id`: as `docker image inspect` tells it once the file is loaded."""

    path: Path
    name: str
    id: str


def image_file(text: str, name: str = "") -> ImageFile:
    """`name`: which image is wanted; else the file's first. Raises RequestError."""
    path = Path(text)
    try:
        with tarfile.open(path) as archive:
            member = archive.extractfile("manifest.json")
            manifest = json.loads(member.read()) if member else []
        found = {
            tag: Path(one["Config"]).name.removesuffix(".json") for one in manifest for tag in one["RepoTags"] or ()
        }
    except (OSError, tarfile.TarError, ValueError, KeyError, TypeError) as error:
        raise RequestError(f"{path} is no file of an image: {error}", hint=HINT) from None
    wanted = with_tag(name) if name else next(iter(found), "")
    if wanted not in found:
        has = ", ".join(found) or "no image with a name"
        raise RequestError(f"{path} has {has}, not {wanted or 'one to run'}.", hint=HINT)
    return ImageFile(path=path.resolve(), name=wanted, id=f"sha256:{found[wanted]}")


def with_tag(name: str) -> str:
    """As docker writes it: without a tag it means `latest`."""
    return name if ":" in name.rpartition("/")[2] else f"{name}:latest"
