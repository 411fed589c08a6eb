"""Reads image files, as written by `docker save` and `orch image save`."""

from __future__ import annotations

import json
import tarfile
from dataclasses import dataclass
from pathlib import Path

from orchestrator.errors import RequestError

HINT = "Create one with `orch image save FILE.tar` or `docker save --output FILE.tar NAME`."


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageFile:
    """An image in a file; `id` is its id in `docker image inspect` after loading."""

    path: Path
    name: str
    id: str


def image_file(text: str, name: str = "") -> ImageFile:
    """Return the image `name` of a file, or its first image if there is no name.

    Raises:
        RequestError: if the file is not an image file, or does not contain the image.
    """
    path = Path(text)
    try:
        with tarfile.open(path) as archive:
            member = archive.extractfile("manifest.json")
            manifest = json.loads(member.read()) if member else []
        digests = {
            tag: Path(image["Config"]).name.removesuffix(".json")
            for image in manifest
            for tag in image["RepoTags"] or ()
        }
    except (OSError, tarfile.TarError, ValueError, KeyError, TypeError) as error:
        raise RequestError(f"{path} is not an image file: {error}", hint=HINT) from None
    tag = with_tag(name) if name else next(iter(digests), "")
    if not digests:
        raise RequestError(f"{path} contains no named image.", hint=HINT)
    if tag not in digests:
        raise RequestError(f"{path} contains {', '.join(digests)}, but not {tag}.", hint=HINT)
    return ImageFile(path=path.resolve(), name=tag, id=f"sha256:{digests[tag]}")


def with_tag(name: str) -> str:
    """Return an image name with its tag; docker's default is `latest`."""
    return name if ":" in name.rpartition("/")[2] else f"{name}:latest"
