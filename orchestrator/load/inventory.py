"""Ansible inventories, read by Ansible itself, and remembered until one of their files changes."""

from __future__ import annotations

import hashlib
import json
import os
import re
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from orchestrator.errors import RequestError, did_you_mean
from orchestrator.files import write_whole
from orchestrator.load.ansible import ansible_environment, check_environment
from orchestrator.model.host_key_checks import HINT, find_unsafe_setting
from orchestrator.model.host_names import is_host
from orchestrator.model.printable import one_line
from orchestrator.state import cache_home, private_folder

FORMAT = 7  # of what is remembered on disk
# Only these are remembered on disk: an inventory may hold secrets in its other variables.
CACHED_VARIABLES = (
    "ansible_host",
    "ansible_connection",
    "ansible_port",
    "ansible_user",
    "ansible_ssh_private_key_file",
)
CACHED_PREFIX = "orch_"
UNCACHED_VARIABLES = ("orch_secrets", "orch_env")
# All that orch and its playbooks read of an inventory; other names with this prefix are mistakes.
KNOWN_VARIABLES = (
    "orch_address",
    "orch_docker",
    "orch_env",
    "orch_fabric",
    "orch_firewall",
    "orch_limits",
    "orch_mpi",
    "orch_port",
    "orch_python",
    "orch_root",
    "orch_secrets",
)
UNPARSED = "Completely failed to parse inventory source"  # as Ansible reports it
# Of these only that they are there, under this name.
PASSWORDS = ("ansible_become_password", "ansible_become_pass", "ansible_sudo_pass")
HAS_PASSWORD = "has_become_password"
AT_LINE = re.compile(r"^Origin: .*:(\d+):\d+$", re.MULTILINE)  # where YAML cannot be read


@dataclass(frozen=True, slots=True, kw_only=True)
class Listing:
    """Host -> its variables, in the inventory's own order; group -> its hosts and child groups."""

    hosts: Mapping[str, Mapping[str, Any]]
    groups: Mapping[str, Mapping[str, list[str]]]


class Group(BaseModel):
    """What ansible-inventory says of one group; `vars` and what else there is are left out."""

    model_config = ConfigDict(strict=True)

    hosts: list[str] = Field(default_factory=list)
    children: list[str] = Field(default_factory=list)


class Meta(BaseModel):
    model_config = ConfigDict(strict=True)

    hostvars: dict[str, dict[str, Any]] = Field(default_factory=dict)


def read_inventory(source: Path) -> dict[str, Mapping[str, Any]]:
    """Host -> its variables, in the inventory's own order. Raises RequestError."""
    return dict(read_listing(source).hosts)


def read_listing(source: Path) -> Listing:
    """All of the inventory. Raises RequestError."""
    check_environment()
    remembered = cache_path(source)
    if remembered and (known := recalled(remembered)):
        return known
    listing = ask_ansible(source)
    if remembered:
        remember(remembered, asdict(listing))
    return listing


def recalled(path: Path) -> Listing | None:
    """None for what was not remembered, or cannot be read."""
    try:
        return Listing(**json.loads(path.read_bytes()))
    except (OSError, ValueError, RecursionError, TypeError):
        return None


def remember(path: Path, value: object) -> None:
    private_folder(path.parent)
    write_whole(path, json.dumps(value))


def cache_path(source: Path) -> Path | None:
    """Named by the hash of all that the inventory is made of; None if a program makes it."""
    digest = hashlib.sha256(f"{FORMAT} {source.resolve()}".encode())
    for path in sources(source):
        if os.access(path, os.X_OK):
            return None
        try:
            digest.update(str(path).encode() + b"\0" + path.read_bytes())
        except OSError as error:
            raise RequestError(
                f"Inventory {path} cannot be read: {error.strerror}.",
                hint="All files of an inventory's folder count: make it readable, or move it away.",
            ) from None
    return cache_home() / "inventory" / f"{digest.hexdigest()[:32]}.json"


def sources(source: Path) -> list[Path]:
    """All files that Ansible reads: of a folder all, of a file also the variables beside it."""
    folders = [source]
    if source.is_file():
        folders = [source.parent / name for name in ("group_vars", "host_vars")]
    found = sorted(path for folder in folders for path in folder.rglob("*") if path.is_file())
    return [source, *found] if source.is_file() else found


def ask_ansible(source: Path) -> Listing:
    command = [str(program()), "-i", str(source), "--list"]
    # Unparsable sources are only warnings to Ansible by default; then it finds no hosts.
    strict = {
        "ANSIBLE_INVENTORY_UNPARSED_FAILED": "1",
        "ANSIBLE_INVENTORY_ANY_UNPARSED_IS_FAILED": "1",
        "ANSIBLE_NOCOLOR": "1",
    }
    environment = {**os.environ, **ansible_environment(), **strict}
    try:
        done = subprocess.run(command, capture_output=True, text=True, env=environment)
    except OSError as error:
        raise RequestError(
            f"{program()} could not be started: {error.strerror}.", hint="It comes with orch: install orch again."
        ) from None
    if done.returncode != 0:
        if UNPARSED in done.stderr and source.is_dir() and not AT_LINE.search(done.stderr):
            raise RequestError(
                f"{source} is a folder without an inventory.",
                hint="Name an inventory's file, or the folder that `orch init NAME HOST...` wrote: inventory/NAME.",
            )
        words = reason(done.stderr, source)
        hints = {
            "vault": "Name the vault's password: ANSIBLE_VAULT_PASSWORD_FILE=FILE.",
            "tabs": "YAML is indented with spaces: replace the tab by two of them.",
        }
        by_hand = f"More about it: {asked_by_hand(source)}"
        raise RequestError(
            f"Ansible cannot read inventory {source}: {words}",
            hint=next((hints[word] for word in hints if word in words.lower()), by_hand),
        )
    try:
        return listing_of(json.loads(done.stdout))
    except ValueError as error:
        raise RequestError(
            f"Ansible's answer on inventory {source} is no JSON: {error}", hint=f"By hand: {asked_by_hand(source)}"
        ) from None


def program() -> Path:
    return Path(sys.executable).with_name("ansible-inventory")


def asked_by_hand(source: Path) -> str:
    return f"`{program()} -i {source} --list`."


def reason(text: str, source: Path) -> str:
    """Ansible tries a file as all kinds of inventory; what counts is what it says of its own."""
    plugin = "yaml" if source.suffix in (".yml", ".yaml", ".json") else "ini"
    mark = f"Failed to parse inventory with '{plugin}' plugin: "
    reasons = [line.partition(mark)[2] for line in text.splitlines() if mark in line]
    if not reasons:
        return last_words(text)
    line = AT_LINE.search(text) if plugin == "yaml" else None
    words = reasons[0].removeprefix("Failed to parse inventory: ")
    return f"line {line[1]}: {words}" if line else words


def last_words(text: str) -> str:
    return " ".join(line.strip() for line in text.splitlines() if line.strip())[-600:]


def listing_of(found: object) -> Listing:
    """Ansible's answer, or that of the program that makes the inventory. Raises RequestError."""
    try:
        answer = dict(found) if isinstance(found, dict) else {}
        variables = Meta.model_validate(answer.pop("_meta", {})).hostvars
        groups = {name: Group.model_validate(entry) for name, entry in answer.items()}
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join(map(str, first["loc"]))
        raise RequestError(
            one_line(f"The inventory has a wrong {where}: {first['msg']}."),
            hint="`ansible-inventory -i INVENTORY --list` prints what it says.",
        ) from None
    hosts = {host: variables.get(host, {}) for host in walk(groups)}
    for host, its in hosts.items():
        check_variables(host, its)
        check_host(host, its)
    return Listing(
        hosts={host: kept(its) for host, its in hosts.items()},
        groups={name: group.model_dump() for name, group in groups.items()},
    )


def walk(groups: Mapping[str, Group]) -> dict[str, None]:
    """All hosts, in the inventory's order: only the lists of groups keep it."""
    hosts: dict[str, None] = {}
    waiting, seen = ["all"], set()
    while waiting:
        name = waiting.pop()
        group = groups.get(name)
        if group is None or name in seen:
            continue
        seen.add(name)
        hosts |= dict.fromkeys(group.hosts)
        waiting += reversed(group.children)
    return hosts


def check_variables(host: str, variables: Mapping[str, Any]) -> None:
    """Check that orch knows each `orch_*` variable.

    Raises:
        RequestError: if a name is unknown: a misspelled one would be ignored silently.
    """
    for name in variables:
        if name.startswith(CACHED_PREFIX) and name not in KNOWN_VARIABLES:
            raise RequestError(
                one_line(f"Unknown variable '{name}' of {host} in the inventory."),
                hint=did_you_mean(name, KNOWN_VARIABLES),
            )


def check_host(name: str, variables: Mapping[str, Any]) -> None:
    """A host whose name or address would be read as something else in a file or a command, and one
    whose key would not be verified. Raises RequestError."""
    if not is_host(name):
        raise RequestError(
            f"The inventory names a host {one_line(repr(name)[:80])}: that is no host name.",
            hint="A name has letters, digits, '-', '_' and '.', and begins with a letter or digit "
            "(RFC 1123); ansible_host says how it is reached.",
        )
    for variable in ("ansible_host", "orch_address"):
        said = variables.get(variable)
        if said not in (None, "") and not is_template(said) and not is_host(str(said)):
            raise RequestError(
                f"{variable} of {name} is {one_line(repr(said)[:80])}: no host name or address.",
                hint="A port has a variable of its own: ansible_port, orch_port.",
            )
    for variable in ("ansible_port", "orch_port"):
        said = variables.get(variable)
        if said is not None and not is_template(said) and not is_port(str(said)):
            raise RequestError(
                f"{variable} of {name} is {one_line(repr(said)[:80])}: no port.",
                hint="A port is a number from 1 to 65535.",
            )
    if words := find_unsafe_setting(variables):
        raise RequestError(one_line(f"{name}: host keys would not be verified ({words})."), hint=HINT)
    if variables.get("ansible_ssh_args"):
        raise RequestError(
            f"{name}: ansible_ssh_args takes the place of orch's own arguments, with which host "
            "keys are verified and a dead link is noticed.",
            hint="Write what you need as ansible_ssh_common_args: it is added to them, and orch's "
            "own connections take it, too.",
        )


def is_template(value: object) -> bool:
    """Whether only Ansible can tell what it says; orch takes what Ansible made of it."""
    return isinstance(value, str) and ("{{" in value or "{%" in value) and value.isprintable()


def is_port(text: str) -> bool:
    return text.isascii() and text.isdecimal() and 0 < int(text[:6]) < 1 << 16


def kept(variables: Mapping[str, Any]) -> dict[str, Any]:
    found = {
        name: value
        for name, value in variables.items()
        if name in CACHED_VARIABLES or (name.startswith(CACHED_PREFIX) and name not in UNCACHED_VARIABLES)
    }
    return {**found, HAS_PASSWORD: True} if variables.keys() & set(PASSWORDS) else found
