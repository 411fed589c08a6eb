"""Create an inventory from host names, ranges, or an SSH configuration, and a recipe from templates."""

from __future__ import annotations

import glob
import json
import os
import re
import shlex
import shutil
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from fnmatch import fnmatchcase
from pathlib import Path

import yaml

from orchestrator.errors import ExecuteError, RequestError, did_you_mean
from orchestrator.files import PUBLIC, TEMPLATES, render_template, write_whole
from orchestrator.load.definitions import RECIPE_SCHEMA, recipe_folders
from orchestrator.model.hosts import SSH_PORT, expand_list, is_address, is_host, split_list
from orchestrator.model.printable import one_line
from orchestrator.provisioning.ssh_settings import existing_file, query_ssh

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}", re.ASCII)
# YAML reads it as a text, except for numbers and words like yes.
PLAIN = re.compile(r"[A-Za-z0-9~/][A-Za-z0-9~/_.@-]*", re.ASCII)
GROUPS = ("all", "ungrouped")  # Ansible's own groups
EXAMPLES = "Examples: node1, alice@node1:2222, node[1-8], 10.0.0.[1-8]. A file of hosts: --hostfile FILE."
URI = "ssh://"  # before a host with any port
LOWEST_PORT = 1024  # a lower number after a colon may be the slots of a hostfile; 22 is always a port
HIGHEST_PORT = 65535
# Colons in brackets belong to a range, and several colons to an IPv6 address.
PORT = re.compile(r"(?P<address>(?:[^\[\]:]|\[[^\[\]]*\])*):(?P<port>[^:]*)")
# No host has such a name, also if the file does not exist.
FILE_NAME = re.compile(
    r"(?:host|machine|node)s?[_-]?(?:file|list)|hosts|machines|nodes|.*\.(?:txt|lst|hosts|cfg|conf|ini|ya?ml|json|toml)",
    re.IGNORECASE,
)
BRACES = re.compile(r"\{(\w+)\.\.(\w+)\}")  # of a shell
MAX_PARALLEL_QUERIES = 16  # each is a process of this machine
# Key in the output of `ssh -G` -> Ansible variable.
VARIABLE_OF_KEY = {
    "hostname": "ansible_host",
    "user": "ansible_user",
    "port": "ansible_port",
    "identityfile": "ansible_ssh_private_key_file",
}
# Key in the output of `ssh -G` -> option in ansible_ssh_common_args.
OPTION_OF_KEY = {"proxyjump": "ProxyJump", "proxycommand": "ProxyCommand", "hostkeyalias": "HostKeyAlias"}
MAX_INCLUDES = 16  # of files in each other, as in ssh
RECIPE_NAME = re.compile(r"[a-z][a-z0-9]*(-[a-z0-9]+)*")
Host = tuple[str, Mapping[str, str]]  # the name of a node, and its variables, whose values are written as YAML


def init(name: str, host_patterns: Sequence[str], ssh_config: Path | None) -> Path:
    """Write inventory/NAME/hosts.yml and return its folder.

    Args:
        name: name of the cluster.
        host_patterns: hosts or ranges; with an SSH configuration, patterns that select its hosts.
        ssh_config: read the hosts from this file.

    Raises:
        RequestError: if the name or a host is invalid.
        ExecuteError: if the file cannot be written.
    """
    if not NAME.fullmatch(name):
        raise RequestError.about("cluster-name", name=name)
    for word in (part for pattern in host_patterns for part in split_list(pattern)):
        check_word(word)
    hosts = tuple(configured(host_patterns, ssh_config) if ssh_config else listed_hosts(host_patterns))
    check_hosts(hosts)
    folder = Path("inventory") / name
    path = folder / "hosts.yml"
    if any(folder.glob("*")):  # a full disk leaves an empty folder
        raise RequestError(f"{folder} already exists.", hint="Choose another name, or edit it.")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        write_whole(path, render(name, str(folder), hosts), mode=PUBLIC)
    except OSError as error:
        raise ExecuteError.about("unwritable-inventory", path=path, error=error) from None
    return folder


def check_hosts(hosts: Sequence[Host]) -> None:
    """Raise RequestError if there are no hosts, duplicates, or invalid names."""
    names = [name for name, _ in hosts]
    if not names:
        raise RequestError("No hosts.", hint="Name hosts (alice@node1, node[1-8], 10.0.0.1), or use --from-ssh-config.")
    check_unique(names)
    for name in names:
        if name in GROUPS:
            raise RequestError(f"Ansible has a group named '{name}'.", hint=f"Write the address of {name} instead.")
        if not is_host(name):
            raise RequestError(f"Invalid host name {one_line(name)[:80]!r}.", hint=EXAMPLES)


def check_unique(names: Iterable[str]) -> None:
    """Raise RequestError if a name or an address stands twice in a list."""
    if duplicates := sorted(name for name, times in Counter(names).items() if times > 1)[:3]:
        raise RequestError.about("hosts-named-twice", names=", ".join(duplicates))


def render(name: str, path: str, hosts: Sequence[Host]) -> str:
    """Return the inventory as YAML with comments; variables that all hosts share appear once."""
    shared = dict(sorted(set.intersection(*(set(variables.items()) for _, variables in hosts))))
    shared.pop("ansible_host", None)
    nodes = {
        yaml_text(host): {key: value for key, value in variables.items() if key not in shared}
        for host, variables in hosts
    }
    return render_template("inventory.yml.j2", name=name, path=path, hosts=nodes, shared=shared)


def check_word(word: str) -> None:
    """Raise RequestError for an argument that is a file, or a part of a hostfile, and not a host."""
    shown = one_line(word)[:80]
    path = word.removeprefix("@")
    is_path = word.startswith("@") or "/" in word.removeprefix(URI) or FILE_NAME.fullmatch(word)
    if is_path or os.path.isfile(path):
        kind = "is a file" if os.path.isfile(path) else "is not a host"
        raise RequestError(f"{shown} {kind}.", hint=f"To read hosts from a file: --hostfile {shlex.quote(path)}")
    if re.match(r"\w+=", word) or len(word.split()) > 1:
        raise RequestError.about("words-as-host", word=shown)
    if match := BRACES.search(word):
        ranged = word.replace(match[0], f"[{match[1]}-{match[2]}]")
        raise RequestError(f"{shown!r} is not a host.", hint=f"Write the range as {one_line(ranged)[:80]}")


def listed_hosts(host_patterns: Iterable[str]) -> Iterator[Host]:
    """Yield hosts written as `[user@]name[:port]` or ranges; addresses get the names node0, node1, ..."""
    addresses: list[str] = []
    for word in (part for pattern in host_patterns for part in split_list(pattern)):
        user, _, address_and_port = word.removeprefix(URI).rpartition("@")
        address, port = split_port(word, address_and_port)
        variables = {"ansible_user": user, "ansible_port": port}
        for host in expand_range(address):
            if is_address(host):
                yield f"node{len(addresses)}", yaml_values({"ansible_host": host} | variables)
                addresses.append(f"{host} port {port}" if port else host)
            else:
                yield host, yaml_values(variables)
    check_unique(addresses)


def split_port(word: str, address_and_port: str) -> tuple[str, str]:
    """Return the address and the port, or '', of a host.

    Raises:
        RequestError: if the port is invalid, or may be a number of slots.
    """
    match = PORT.fullmatch(address_and_port)
    if match is None:
        return address_and_port, ""
    address, port = match["address"], match["port"]
    shown = one_line(word)[:80]
    if not port.isdecimal() or not 0 < int(port[:6]) <= HIGHEST_PORT:
        raise RequestError(f"{shown}: invalid port {port!r:.20}.", hint=EXAMPLES)
    if int(port) < LOWEST_PORT and int(port) != SSH_PORT and not word.startswith(URI):
        raise RequestError.about("port-or-slots", host=shown, port=port)
    return address, port


def expand_range(word: str) -> list[str]:
    """Return the hosts of a range: node[1-3] is node1, node2, node3.

    Raises:
        RequestError: if the range is invalid or too long.
    """
    try:
        return expand_list(word)
    except ValueError as error:
        raise RequestError(f"{one_line(word)[:80]}: {error}.", hint=EXAMPLES) from None


def yaml_values(variables: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that are not empty, quoted for YAML where necessary."""
    return {key: value if key == "ansible_port" else yaml_text(value) for key, value in variables.items() if value}


def yaml_text(text: str) -> str:
    """Return a text as YAML, in quotes if it would be a number or another value without them."""
    return text if PLAIN.fullmatch(text) and yaml.safe_load(text) == text else json.dumps(text)


def configured(host_patterns: Sequence[str], path: Path) -> Iterator[Host]:
    """Yield the hosts of an SSH configuration, or those that match the given patterns.

    ssh itself resolves the settings of each host, including Match, Include and patterns.

    Raises:
        RequestError: if a pattern matches no host.
        ExecuteError: if ssh fails.
    """
    names = list(dict.fromkeys(host_names(path)))
    patterns = [pattern for word in host_patterns for pattern in expand_range(word)]
    for pattern in patterns:
        if not any(fnmatchcase(name, pattern) for name in names):
            raise RequestError(f"{path} has no Host {one_line(pattern)[:80]}.", hint=did_you_mean(pattern, names))
    selected = [name for name in names if not patterns or any(fnmatchcase(name, pattern) for pattern in patterns)]
    with ThreadPoolExecutor(MAX_PARALLEL_QUERIES) as pool:
        for name, variables in zip(selected, pool.map(lambda name: host_variables(name, path), selected), strict=True):
            yield name, yaml_values(variables)


def host_names(path: Path, level: int = 0) -> Iterator[str]:
    """Yield the names in the Host lines of an SSH configuration and the files that it includes, without patterns."""
    try:
        lines = path.read_text(errors="replace").splitlines()
    except OSError as error:
        raise RequestError.about("unreadable-ssh-config", path=path, error=error) from None
    for line in lines:
        word, *values = re.split(r"(?:^|\s)#", line)[0].replace("=", " ", 1).replace('"', " ").split() or [""]
        if word.lower() == "host":
            yield from (name for name in values if not set(name) & set("*?!"))
        elif word.lower() == "include" and level < MAX_INCLUDES:
            for value in values:
                for file in sorted(glob.glob(os.path.join(Path.home(), ".ssh", os.path.expanduser(value)))):
                    yield from host_names(Path(file), level + 1)


def host_variables(name: str, path: Path) -> dict[str, str]:
    """Return the Ansible variables of a host: settings of ssh other than its defaults, and the first key that exists.

    Raises:
        RequestError: if the name is invalid.
        ExecuteError: if ssh fails.
    """
    if not is_host(name):  # no text of the file may become an option of ssh
        raise RequestError.about("host-of-ssh-config", path=path, name=one_line(name)[:80])
    variables: dict[str, str] = {}
    settings = query_ssh(["-F", str(path), "--", name])
    first_values = {key: values[0] for key, values in settings.items()}
    defaults = {"hostname": name, "port": str(SSH_PORT), "proxyjump": "none", "proxycommand": "none"}
    options = []
    for key, text in ((key, value) for key, values in settings.items() for value in values):
        value = existing_file(text, name, first_values) if key == "identityfile" else text
        if not value or value == defaults.get(key):
            continue
        if key in OPTION_OF_KEY:
            options.append(f"-o {shlex.quote(f'{OPTION_OF_KEY[key]}={value}')}")
        elif key in VARIABLE_OF_KEY:
            variables.setdefault(VARIABLE_OF_KEY[key], value)
    return {**variables, "ansible_ssh_common_args": " ".join(options)}


def new_recipe(name: str, into: Path) -> Path:
    """Create the folder of a recipe from the templates and return it.

    Raises:
        RequestError: if the name is invalid or already in use.
        ExecuteError: if the folder cannot be written.
    """
    if not RECIPE_NAME.fullmatch(name):
        raise RequestError.about("recipe-name", name=name)
    if name in recipe_folders():
        raise RequestError(f"Recipe '{name}' already exists.", hint="Choose another name: my-recipe.")
    folder = into / name.replace("-", "_")
    if folder.exists():
        raise RequestError(f"{folder} already exists.", hint="Choose another name or --in.")
    templates = (*(TEMPLATES / "recipe").iterdir(), RECIPE_SCHEMA)
    texts = {path.name.removesuffix(".in"): path.read_text(encoding="utf-8") for path in templates}
    try:
        folder.mkdir(parents=True)
        for file, text in texts.items():
            (folder / file).write_text(text.replace("NAME", name), encoding="utf-8")
    except OSError as error:
        shutil.rmtree(folder, ignore_errors=True)
        raise ExecuteError(f"Cannot write {folder}: {error.strerror}.", hint="Choose another folder: --in.") from None
    return folder
