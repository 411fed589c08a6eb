"""Load Docker from orch_docker of the inventory and --image-option KEY=VALUE, and read image files."""

from __future__ import annotations

import json
import tarfile
from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, get_type_hints

from pydantic import ConfigDict, create_model

from orchestrator.errors import RequestError, did_you_mean
from orchestrator.load.clusters import find_inventory
from orchestrator.load.files import parse_variable
from orchestrator.load.inventory import read_inventory
from orchestrator.planning.containers import Docker

VARIABLE = "orch_docker"
NAMES = tuple(field.name for field in fields(Docker) if field.name != "image")
LISTS = ("mounts", "arguments")
IMAGE_FILE_HINT = "Create one with `orch image save FILE.tar` or `docker save --output FILE.tar NAME`."


# The value of orch_docker: the settings of Docker, and `load`, an image file of this machine for `orch provision`.
FIELDS: Any = {
    "load": (str, ""),
    **{item.name: (get_type_hints(Docker)[item.name], item.default) for item in fields(Docker)},
}
CONFIG = ConfigDict(defer_build=True, extra="forbid", coerce_numbers_to_str=True)
DockerVariable: Any = create_model("DockerVariable", __config__=CONFIG, **FIELDS)


def common_docker_variable(hosts: Mapping[str, Mapping[str, Any]]) -> Any:
    """Return orch_docker of the hosts that have it, or its defaults.

    Raises:
        RequestError: if its value is invalid, or differs between hosts.
    """
    tables = {host: variables[VARIABLE] or {} for host, variables in hosts.items() if VARIABLE in variables}
    values = [parse_variable(VARIABLE, host, table, DockerVariable) for host, table in tables.items()]
    if any(value != values[0] for value in values):
        raise RequestError(f"{VARIABLE} differs between the hosts.", hint="Set it for all hosts.")
    return values[0] if values else DockerVariable()


def check_no_image_options(options: tuple[str, ...]) -> None:
    """Raise RequestError if there are options for an image, in a run without an image."""
    if options:
        raise RequestError.about("image-option", option=options[0])


def docker(image: str | None, options: tuple[str, ...], inventory: str) -> Docker | None:
    """Merge the inventory's values and those of --image-option; None without an image.

    Raises:
        RequestError: if a value is invalid, or there are options without an image.
    """
    if image is None:
        check_no_image_options(options)
        return None
    variable = common_docker_variable(read_inventory(find_inventory(inventory)))
    settings = Docker(**{**variable.model_dump(exclude={"load"}), "image": image})
    for option in options:
        settings = replace(settings, **parse_image_option(settings, option, NAMES, "shm=4g"))
    return settings


def parse_image_option(settings: object, option: str, names: Sequence[str], example: str) -> dict[str, Any]:
    """Return the field of the settings that an option changes, with its new value; lists get another entry.

    Raises:
        RequestError: if the key is unknown.
    """
    name, equals, text = option.partition("=")
    if not equals:
        raise RequestError(f"--image-option {option}: expected KEY=VALUE.", hint=f"Example: --image-option {example}")
    if name not in names:
        raise RequestError(f"--image-option {name}: unknown key.", hint=did_you_mean(name, names))
    return {name: (*getattr(settings, name), text) if name in LISTS else text}


def image_file(path: Path, name: str = "") -> tuple[str, str]:
    """Return the name of the image `name` of a file, or of its first image, and its id in `docker image inspect`.

    Raises:
        RequestError: if the file is not an image file, or does not contain the image.
    """
    try:
        with tarfile.open(path) as archive:
            member = archive.extractfile("manifest.json")
            manifest = json.loads(member.read()) if member else []
        configs = {tag: image["Config"] for image in manifest for tag in image["RepoTags"] or ()}
        digests = {tag: Path(config).name.removesuffix(".json") for tag, config in configs.items()}
    except Exception as error:  # such as EOFError, or errors of the compression
        raise RequestError(f"{path} is not an image file: {error}", hint=IMAGE_FILE_HINT) from None
    tag = name or next(iter(digests), "")
    if ":" not in tag.rpartition("/")[2]:
        tag = f"{tag}:latest"  # docker's default
    if not digests:
        raise RequestError(f"{path} contains no named image.", hint=IMAGE_FILE_HINT)
    if tag not in digests:
        raise RequestError(f"{path} contains {', '.join(digests)}, but not {tag}.", hint=IMAGE_FILE_HINT)
    return tag, f"sha256:{digests[tag]}"
