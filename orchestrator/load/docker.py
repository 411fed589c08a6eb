"""orch_docker of the inventory and --docker KEY=VALUE -> Docker."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, replace
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError

from orchestrator.errors import RequestError, did_you_mean
from orchestrator.load.clusters import find_inventory
from orchestrator.load.inventory import read_inventory
from orchestrator.planning.containers import Docker

VARIABLE = "orch_docker"
NAMES = tuple(field.name for field in fields(Docker) if field.name != "image")
LISTS = ("mounts", "arguments")


class DockerVariable(BaseModel):
    """A mapping of the inventory: what orchestrator.docker.Docker says, and for `orch provision`
    `load`, an image's file on this machine."""

    model_config = ConfigDict(extra="forbid", coerce_numbers_to_str=True)

    image: str = ""
    load: str = ""
    start: str | None = None
    python: str | None = None
    shm: str | None = None
    memlock: str | None = None
    mounts: tuple[str, ...] | None = None
    env_file: str | None = None
    arguments: tuple[str, ...] | None = None


def docker_variable(host: str, variables: Mapping[str, Any]) -> DockerVariable | None:
    """What the inventory says of one node; None if nothing. Raises RequestError."""
    if VARIABLE not in variables:
        return None
    try:
        return DockerVariable.model_validate(variables[VARIABLE] or {})
    except ValidationError as error:
        first = error.errors()[0]
        key = ".".join([VARIABLE, *map(str, first["loc"])])
        raise RequestError(
            f"{key} of {host}: {first['msg']}", hint=f"{VARIABLE} may have: {', '.join(DockerVariable.model_fields)}."
        ) from None


def agreed(hosts: Mapping[str, Mapping[str, Any]]) -> DockerVariable | None:
    """What all hosts say that say something; None if none does. Raises RequestError."""
    given = [one for host, variables in hosts.items() if (one := docker_variable(host, variables))]
    if any(one != given[0] for one in given):
        raise RequestError(f"{VARIABLE} differs between the hosts.", hint="Set it for all hosts.")
    return given[0] if given else None


def docker(image: str | None, pairs: tuple[str, ...], inventory: str) -> Docker | None:
    """The inventory's values, then the pairs'; None without an image. Raises RequestError."""
    if image is None:
        if pairs:
            raise RequestError(
                f"--docker {pairs[0]}: without --docker-image there is no container.",
                hint="Add --docker-image NAME, or leave --docker out.",
            )
        return None
    said = agreed(read_inventory(find_inventory(inventory)))
    values = said.model_dump(exclude_none=True, exclude={"image", "load"}) if said else {}
    found = Docker(image=image, **values)
    for pair in pairs:
        found = with_pair(found, pair)
    return found


def with_pair(settings: Docker, pair: str) -> Docker:
    """With one more word of a list, or another value. Raises RequestError."""
    name, equals, text = pair.partition("=")
    if not equals:
        raise RequestError(f"--docker {pair}: expected KEY=VALUE.", hint="--docker shm=4g")
    if name not in NAMES:
        raise RequestError(f"--docker {name}: unknown key.", hint=did_you_mean(name, NAMES))
    value: Any = (*getattr(settings, name), text) if name in LISTS else text
    return replace(settings, **{name: value})
