"""Read inventories with Ansible, and cache them until one of their files changes."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import yaml
from orch_node.protocol.environment import find_reserved
from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from orchestrator.errors import RequestError, did_you_mean, first_problem
from orchestrator.files import INVENTORY, SHARE, ansible_home, cache_home, private_folder, write_whole
from orchestrator.load import ssh_options
from orchestrator.load.files import read_table
from orchestrator.model.cluster import LOCAL
from orchestrator.model.hosts import is_host
from orchestrator.model.printable import one_line

CONFIG = SHARE / "ansible.cfg"
# The inventory variable that corresponds to each environment variable of Ansible.
INVENTORY_VARIABLES = {
    variable.upper(): name
    for name in (*ssh_options.SAFE_VALUES, *ssh_options.ARGUMENTS)
    for variable in (name, name.replace("ansible_control", "ansible_ssh_control"))
}


def ansible_environment() -> dict[str, str]:
    """Return the environment variables for Ansible.

    Without ANSIBLE_CONFIG, Ansible would load an ansible.cfg in the current folder, and the plug-ins that it names.
    """
    return {**ansible_home(), "ANSIBLE_CONFIG": str(CONFIG)}


def check_environment() -> None:
    """Check the user's environment variables for Ansible.

    Raises:
        RequestError: if they select another configuration, or disable the verification of host keys.
    """
    path = os.environ.get("ANSIBLE_CONFIG")
    if path and Path(path).resolve() != CONFIG.resolve():
        raise RequestError.about("ansible-config", path=path)
    for variable, inventory_variable in INVENTORY_VARIABLES.items():
        if variable not in os.environ:
            continue
        if setting := ssh_options.find_unsafe_setting({inventory_variable: os.environ[variable]}):
            value = setting.partition(": ")[2]
            raise RequestError(f"Host keys would not be verified: {variable} ({value}).", hint=ssh_options.HINT)


THIS_MACHINE = {"node0": {"ansible_connection": "local"}}  # the hosts of orch's own inventory
CACHE_FORMAT = 8
SSH_ARGUMENTS = ("ansible_ssh_common_args", "ansible_ssh_extra_args")  # that orch's own connections use, too
VARIABLES: dict[str, list[str]] = read_table(Path(__file__).with_name("inventory_variables.toml"))
PREFIX = "orch_"
LONGEST_REASON = 2000  # characters of Ansible's output, which has the path of the inventory several times
HAS_PASSWORD = "has_become_password"  # in place of passwords in the cache


@dataclass(frozen=True, slots=True, kw_only=True)
class Listing:
    """The variables of each host, in the inventory's order, and the hosts and child groups of each group."""

    hosts: Mapping[str, Mapping[str, Any]]
    groups: Mapping[str, Mapping[str, list[str]]]


class Group(BaseModel):
    """A group in the output of ansible-inventory, or the variables of all hosts in place of a group."""

    model_config = ConfigDict(defer_build=True, strict=True)

    hosts: list[str] = Field(default_factory=list)
    children: list[str] = Field(default_factory=list)
    hostvars: dict[str, dict[str, Any]] = Field(default_factory=dict)


def read_inventory(source: Path) -> dict[str, Mapping[str, Any]]:
    """Return the variables of each host, in the inventory's order.

    Raises:
        RequestError: if the inventory cannot be read, or is unsafe.
    """
    return dict(read_listing(source).hosts)


def read_listing(source: Path) -> Listing:
    """Return the hosts and groups of an inventory.

    Raises:
        RequestError: if the inventory cannot be read, or is unsafe.
    """
    file = source / "hosts.yml"
    is_unchanged = source == INVENTORY / LOCAL and [*source.iterdir()] == [file]
    if is_unchanged and yaml.safe_load(file.read_text()) == {"all": {"hosts": THIS_MACHINE}}:  # needs no Ansible
        return Listing(hosts=THIS_MACHINE, groups={"all": {"hosts": [*THIS_MACHINE], "children": []}})
    check_environment()
    cache = cache_path(source)
    cached = read_cache(cache)
    if isinstance(cached, dict) and cached.keys() == {"hosts", "groups"}:
        return Listing(**cached)
    listing = run_ansible_inventory(source)
    write_cache(cache, asdict(listing))
    return listing


def read_cache(path: Path | None) -> object:
    """Return the value in a file of the cache; None if there is none, or it cannot be read."""
    try:
        return json.loads(path.read_bytes()) if path else None
    except (OSError, ValueError, RecursionError):
        return None


def write_cache(path: Path | None, value: object) -> None:
    if path:
        private_folder(path.parent)
        write_whole(path, json.dumps(value))


def cache_path(source: Path) -> Path | None:
    """Return the cache file, named by a hash of the inventory's files; None if a program generates the inventory."""
    digest = hashlib.sha256(os.fsencode(f"{CACHE_FORMAT} {source.resolve()}"))
    for path in inventory_files(source):
        if os.access(path, os.X_OK):
            return None
        try:
            digest.update(os.fsencode(path) + b"\0" + path.read_bytes())
        except OSError as error:
            raise RequestError.about("unreadable-inventory-file", path=path, error=error) from None
    return cache_home() / "inventory" / f"{digest.hexdigest()[:32]}.json"


def inventory_files(source: Path) -> list[Path]:
    """Return all files that Ansible reads: those of a folder, or a file and the variables next to it."""
    folders = [source]
    if source.is_file():
        folders = [source.parent / name for name in ("group_vars", "host_vars")]
    paths = sorted(path for folder in folders for path in folder.rglob("*") if path.is_file())
    return [source, *paths] if source.is_file() else paths


def run_ansible_inventory(source: Path) -> Listing:
    """Return the listing of ansible-inventory.

    Raises:
        RequestError: if it fails.
    """
    program = Path(sys.executable).with_name("ansible-inventory")
    command = [str(program), "-i", str(source), "--list"]
    # By default, Ansible only warns about sources that it cannot parse, and finds no hosts.
    strict = {
        "ANSIBLE_INVENTORY_UNPARSED_FAILED": "1",
        "ANSIBLE_INVENTORY_ANY_UNPARSED_IS_FAILED": "1",
        "ANSIBLE_NOCOLOR": "1",
    }
    environment = {**os.environ, **ansible_environment(), **strict}
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    if done.returncode != 0:
        reason = " ".join(line.strip() for line in done.stderr.splitlines() if line.strip())
        raise RequestError.about("unreadable-inventory", source=source, reason=reason[:LONGEST_REASON], program=program)
    return parse_listing(json.loads(done.stdout))


def parse_listing(output: object) -> Listing:
    """Return the output of ansible-inventory, or of the program that generates the inventory, as a listing.

    Raises:
        RequestError: if it has another form, or a variable is wrong or unsafe.
    """
    try:
        groups = TypeAdapter(dict[str, Group]).validate_python(output)
    except ValidationError as error:
        key, reason = first_problem(error)
        raise RequestError.about("invalid-inventory", key=one_line(key), reason=one_line(reason)) from None
    variables = groups.pop("_meta", Group()).hostvars
    hosts = {host: variables.get(host, {}) for host in ordered_hosts({**groups})}
    for host, host_variables in hosts.items():
        for find_problems in (variable_problems, address_problems, ssh_problems):
            for problem in find_problems(host, host_variables):
                raise RequestError(one_line(problem.message), hint=problem.hint)
    return Listing(
        hosts={host: cacheable_variables(host_variables) for host, host_variables in hosts.items()},
        groups={name: group.model_dump(exclude={"hostvars"}) for name, group in groups.items()},
    )


def ordered_hosts(groups: dict[str, Group], name: str = "all") -> dict[str, None]:
    """Return the hosts of a group in the inventory's order, which only the lists of the groups keep.

    It removes each group that it has read, because a group may have several parents.
    """
    group = groups.pop(name, Group())
    hosts = dict.fromkeys(group.hosts)
    for child in group.children:
        hosts |= ordered_hosts(groups, child)
    return hosts


def variable_problems(host: str, variables: Mapping[str, Any]) -> Iterator[RequestError]:
    """Yield what is wrong with the names of orch's variables and with those of the ranks."""
    for name in variables:
        if name.startswith(PREFIX) and name not in VARIABLES["orch"]:
            advice = did_you_mean(name, VARIABLES["orch"])
            yield RequestError.about("unknown-variable", name=name, host=host, advice=advice)
    for name in VARIABLES["uncached"]:
        subject, value = f"{name} of {host} in the inventory", variables.get(name)
        rank_variables = value if isinstance(value, dict) else {}
        if empty := [key for key, value in rank_variables.items() if value is None]:
            yield RequestError.about("empty-variable", subject=subject, name=empty[0])
        if reserved := find_reserved(map(str, rank_variables)):
            yield RequestError.about("reserved-variable", subject=subject, name=reserved[0], reason=reserved[1])


def address_problems(host: str, variables: Mapping[str, Any]) -> Iterator[RequestError]:
    """Yield what could have a special meaning in a file or a command."""
    if not is_host(host):
        yield RequestError.about("name-of-host", name=repr(host)[:80])
    address, port = (is_host, "a host name or address"), (is_port, "a port")
    kinds = {"ansible_host": address, "orch_address": address, "ansible_port": port, "orch_port": port}
    for name, (is_valid, kind) in kinds.items():
        value = variables.get(name)
        if value not in (None, "") and not is_template(value) and not is_valid(str(value)):
            yield RequestError.about("variable-of-host", name=name, host=host, value=repr(value)[:80], kind=kind)


def ssh_problems(host: str, variables: Mapping[str, Any]) -> Iterator[RequestError]:
    """Yield settings of ssh that do not verify host keys or replace those of orch.

    Raises:
        RequestError: if orch's own connections cannot use the arguments of ssh.
    """
    for name in ("ansible_ssh_private_key_file", "ansible_private_key_file"):
        key = variables.get(name)
        if key and not is_template(key) and not str(key).startswith(("/", "~")):
            yield RequestError.about("relative-key", name=name, host=host, key=str(key)[:80])
    if setting := ssh_options.find_unsafe_setting(variables):
        yield RequestError(f"{host}: host keys would not be verified ({setting}).", hint=ssh_options.HINT)
    if variables.get("ansible_ssh_args"):
        yield RequestError.about("replaced-ssh-arguments", host=host)
    for name in SSH_ARGUMENTS:
        if not is_template(variables.get(name)):
            ssh_options.argument_lines(host, str(variables.get(name) or ""))


def is_template(value: object) -> bool:
    """Return whether a value is a template that only Ansible can render."""
    return isinstance(value, str) and ("{{" in value or "{%" in value) and value.isprintable()


def is_port(text: str) -> bool:
    return text.isascii() and text.isdecimal() and 0 < int(text[:6]) < 1 << 16


def cacheable_variables(variables: Mapping[str, Any]) -> dict[str, Any]:
    """Return the variables without secrets."""
    cached = {*VARIABLES["cached"], *SSH_ARGUMENTS, *VARIABLES["orch"]} - {*VARIABLES["uncached"]}
    harmless = {name: value for name, value in variables.items() if name in cached}
    return {**harmless, HAS_PASSWORD: True} if variables.keys() & VARIABLES["passwords"] else harmless
