"""`orch init`: an inventory to begin with, from names, ranges, or an SSH configuration."""

from __future__ import annotations

import ipaddress
import json
import re
import subprocess
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path

from orchestrator.errors import ExecuteError, RequestError, did_you_mean
from orchestrator.files import PUBLIC, write_whole
from orchestrator.model.host_names import is_host
from orchestrator.model.hostlist import expand
from orchestrator.model.printable import one_line
from orchestrator.paths import TEMPLATES

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}", re.ASCII)
PLAIN = re.compile(r"[A-Za-z0-9~/][A-Za-z0-9~/_.@-]*", re.ASCII)  # what YAML reads as text
MOST = 10_000  # hosts of one range
SSH_SECONDS = 10
EXAMPLES = "Examples: node1, alice@node1:2222, node[1-8], 10.0.0.1."
# What `ssh -G` says -> the variable of Ansible.
SAID_BY_SSH = {
    "hostname": "ansible_host",
    "user": "ansible_user",
    "port": "ansible_port",
    "identityfile": "ansible_ssh_private_key_file",
    "proxyjump": "ansible_ssh_common_args",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Host:
    """One node of the new inventory. `variables`: as YAML has them."""

    name: str
    variables: Mapping[str, str] = field(default_factory=dict)


def init(name: str, words: Sequence[str], ssh_config: Path | None) -> Path:
    """Write inventory/NAME/hosts.yml; -> the folder. Raises RequestError, ExecuteError."""
    if not NAME.fullmatch(name):
        raise RequestError(
            f"{name!r:.80} is no name of a cluster.",
            hint="A name has letters, digits, '-', '_' and '.': orch init lab user@node1",
        )
    hosts = tuple(configured(words, ssh_config) if ssh_config else named(words))
    check_hosts(hosts)
    folder = Path("inventory") / name
    path = folder / "hosts.yml"
    if folder.exists():
        raise RequestError(f"{folder} is there already.", hint="Take another name, or edit it.")
    try:
        folder.mkdir(parents=True)
        write_whole(path, render(name, str(folder), hosts), mode=PUBLIC)
    except OSError as error:
        raise ExecuteError(
            f"{path} cannot be written: {error.strerror}.",
            hint="It is written below the folder that orch is called in.",
        ) from None
    return folder


def check_hosts(hosts: Sequence[Host]) -> None:
    """Raises RequestError."""
    names = [host.name for host in hosts]
    if not names:
        raise RequestError("No hosts.", hint="Name them (alice@node1, node[1-8], 10.0.0.1), or --from-ssh-config.")
    if twice := sorted(name for name, times in Counter(names).items() if times > 1)[:3]:
        raise RequestError(f"Named twice: {', '.join(twice)}.", hint="A range may hold a name already.")
    for name in names:
        if not is_host(name):
            raise RequestError(f"{one_line(name)[:80]!r} is no host name.", hint=EXAMPLES)


def render(name: str, path: str, hosts: Sequence[Host]) -> str:
    """The inventory as YAML with comments; what all hosts share stands once."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    shared = dict(set.intersection(*(set(host.variables.items()) for host in hosts)))
    shared.pop("ansible_host", None)
    own = [Host(name=host.name, variables=without(host.variables, shared)) for host in hosts]
    environment = Environment(
        loader=FileSystemLoader(TEMPLATES),
        undefined=StrictUndefined,
        keep_trailing_newline=True,
        autoescape=False,  # nosec: YAML
    )
    template = environment.get_template("inventory.yml.j2")
    return template.render(name=name, path=path, hosts=own, shared=dict(sorted(shared.items())))


def without(variables: Mapping[str, str], shared: Mapping[str, str]) -> dict[str, str]:
    return {key: value for key, value in variables.items() if key not in shared}


def named(words: Iterable[str]) -> Iterator[Host]:
    """Hosts as `[user@]name[:port]`, also with a range; addresses are called node0, node1, ..."""
    numbers = 0
    for word in words:
        user, _, place = word.rpartition("@")
        address, colon, port = place.rpartition(":") if place.count(":") == 1 else (place, "", "")
        if colon and not port.isdecimal():
            raise RequestError(f"{one_line(word)[:80]}: {port!r:.20} is no port.", hint=EXAMPLES)
        said = {"ansible_user": user, "ansible_port": port}
        for one in unfolded(address):
            if is_address(one):
                yield Host(name=f"node{numbers}", variables=told({"ansible_host": one} | said))
                numbers += 1
            else:
                yield Host(name=one, variables=told(said))


def unfolded(word: str) -> list[str]:
    """node[1-3] -> node1, node2, node3. Raises RequestError for more than there can be."""
    if (match := re.search(r"\[(\d{1,9})[-:](\d{1,9})\]", word)) and (not 0 <= int(match[2]) - int(match[1]) < MOST):
        raise RequestError(f"{one_line(word)[:80]}: a range goes up, by {MOST} hosts at most.", hint=EXAMPLES)
    return expand(word, lambda group: False)


def is_address(word: str) -> bool:
    try:
        ipaddress.ip_address(word)
    except ValueError:
        return False
    return True


def told(said: Mapping[str, str]) -> dict[str, str]:
    """What there is to say, as YAML has it."""
    return {key: quoted(value) for key, value in said.items() if value}


def quoted(value: str) -> str:
    return value if PLAIN.fullmatch(value) or value.isdecimal() else json.dumps(value)


# From an SSH configuration.


def configured(words: Sequence[str], path: Path) -> Iterator[Host]:
    """The hosts that the configuration names, or those of them that a word means. Each is asked of
    ssh itself, which knows what Match, Include and patterns come to."""
    names = list(host_names(path))
    wanted = [one for word in words for one in unfolded(word)]
    for name in wanted:
        if not any(fnmatchcase(known, name) for known in names):
            raise RequestError(f"{path} has no Host {one_line(name)[:80]}.", hint=did_you_mean(name, names))
    for name in names:
        if not wanted or any(fnmatchcase(name, pattern) for pattern in wanted):
            yield Host(name=name, variables=told(asked_of_ssh(name, path)))


def host_names(path: Path) -> Iterator[str]:
    """Of its Host lines, in their order, without patterns."""
    try:
        lines = path.read_text(errors="replace").splitlines()
    except OSError as error:
        raise RequestError(
            f"{path} cannot be read: {error.strerror}.", hint="--ssh-config names another file."
        ) from None
    seen: set[str] = set()
    for line in lines:
        word, *names = line.replace("=", " ", 1).replace('"', " ").split() or [""]
        for name in names if word.lower() == "host" else ():
            if not set(name) & set("*?!") and name not in seen:
                seen.add(name)
                yield name


def asked_of_ssh(name: str, path: Path) -> dict[str, str]:
    """Raises ExecuteError."""
    if not is_host(name):  # nothing of a file becomes an option of ssh
        raise RequestError(
            f"{path}: {one_line(name)[:80]!r} is no host name.",
            hint="Name the hosts that are meant: orch init NAME HOST... --ssh-config FILE",
        )
    command = ["ssh", "-G", "-F", str(path), "--", name]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=SSH_SECONDS)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise ExecuteError(f"ssh -G {name}: {error}", hint="It comes with openssh-client.") from None
    if done.returncode != 0:
        raise ExecuteError(
            f"ssh -G {name}: {done.stderr.strip()}",
            hint=f"Mend {path} until `ssh -G -F {path} {name}` prints its settings.",
        )
    return chosen(name, done.stdout.splitlines())


def chosen(name: str, lines: Iterable[str]) -> dict[str, str]:
    """What is not ssh's own default; of several keys the first that is there."""
    found: dict[str, str] = {}
    for line in lines:
        word, _, value = line.partition(" ")
        variable = SAID_BY_SSH.get(word)
        if variable is None or variable in found or is_default(name, word, value):
            continue
        found[variable] = f"-o ProxyJump={value}" if word == "proxyjump" else value
    return found


def is_default(name: str, word: str, value: str) -> bool:
    if word == "identityfile":
        path = Path(value).expanduser()
        return not path.is_file()
    return (word, value) in (("hostname", name), ("port", "22"), ("proxyjump", "none"))
