"""Ansible inventories, read by Ansible itself, and remembered until one of their files changes."""

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

from orchestrator.errors import RequestError
from orchestrator.state import ansible_home, cache_home

FORMAT = 3  # of what is remembered on disk
# Only these are remembered on disk: an inventory may hold secrets in its other variables.
KEPT = ("ansible_host", "ansible_connection", "ansible_port", "ansible_user")
KEPT_PREFIX = "orch_"
NEVER_KEPT = ("orch_secrets", "orch_env")
# Of these only that they are there, under this name.
PASSWORDS = ("ansible_become_password", "ansible_become_pass", "ansible_sudo_pass")
HAS_PASSWORD = "has_become_password"


@dataclass(frozen=True, slots=True, kw_only=True)
class Listing:
    """Host -> its variables, in the inventory's own order; group -> its hosts and child groups."""

    hosts: Mapping[str, Mapping[str, Any]]
    groups: Mapping[str, Mapping[str, list[str]]]


def read_inventory(source: Path) -> dict[str, Mapping[str, Any]]:
    """Host -> its variables, in the inventory's own order. Raises RequestError."""
    return dict(read_listing(source).hosts)


def read_listing(source: Path) -> Listing:
    """All of the inventory. Raises RequestError."""
    remembered = cache_path(source)
    if remembered and remembered.is_file():
        return Listing(**json.loads(remembered.read_text()))
    listing = ask_ansible(source)
    if remembered:
        remember(remembered, asdict(listing))
    return listing


def remember(path: Path, value: object) -> None:
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    staging = path.with_name(f"{path.name}.{os.getpid()}")
    staging.write_text(json.dumps(value))
    staging.replace(path)


def cache_path(source: Path) -> Path | None:
    """Named by the hash of all that the inventory is made of; None if a program makes it."""
    digest = hashlib.sha256(f"{FORMAT} {source.resolve()}".encode())
    for path in sources(source):
        if os.access(path, os.X_OK):
            return None
        try:
            digest.update(str(path).encode() + b"\0" + path.read_bytes())
        except OSError as error:
            raise RequestError(f"Inventory {path} cannot be read: {error.strerror}.") from None
    return cache_home() / "inventory" / f"{digest.hexdigest()[:32]}.json"


def sources(source: Path) -> list[Path]:
    """All files that Ansible reads: of a folder all, of a file also the variables beside it."""
    folders = [source]
    if source.is_file():
        folders = [source.parent / name for name in ("group_vars", "host_vars")]
    found = sorted(path for folder in folders for path in folder.rglob("*") if path.is_file())
    return [source, *found] if source.is_file() else found


def ask_ansible(source: Path) -> Listing:
    program = Path(sys.executable).with_name("ansible-inventory")
    command = [str(program), "-i", str(source), "--list"]
    # Unparsable sources are only warnings to Ansible by default; then it finds no hosts.
    strict = {
        "ANSIBLE_INVENTORY_UNPARSED_FAILED": "1",
        "ANSIBLE_INVENTORY_ANY_UNPARSED_IS_FAILED": "1",
        "ANSIBLE_NOCOLOR": "1",
    }
    environment = {**os.environ, **ansible_home(), **strict}
    try:
        done = subprocess.run(command, capture_output=True, text=True, env=environment)
    except OSError as error:
        raise RequestError(
            f"{program} could not be started: {error.strerror}.",
            hint="It comes with ansible-core: `make setup`.",
        ) from None
    if done.returncode != 0:
        words = reason(done.stderr, source)
        vault = "Name the vault's password: ANSIBLE_VAULT_PASSWORD_FILE=FILE."
        raise RequestError(
            f"Ansible cannot read inventory {source}: {words}",
            hint=vault if "vault" in words.lower() else "",
        )
    return listing_of(json.loads(done.stdout))


def reason(text: str, source: Path) -> str:
    """Ansible tries a file as all kinds of inventory; what counts is what it says of its own."""
    plugin = "yaml" if source.suffix in (".yml", ".yaml", ".json") else "ini"
    mark = f"Failed to parse inventory with '{plugin}' plugin: "
    reasons = [line.partition(mark)[2] for line in text.splitlines() if mark in line]
    return reasons[0].removeprefix("Failed to parse inventory: ") if reasons else last_words(text)


def last_words(text: str) -> str:
    return " ".join(line.strip() for line in text.splitlines() if line.strip())[-600:]


def listing_of(found: Mapping[str, Any]) -> Listing:
    variables = found.get("_meta", {}).get("hostvars", {})
    ordered = dict.fromkeys(walk(found, "all"))
    return Listing(
        hosts={host: kept(variables.get(host, {})) for host in ordered},
        groups={
            name: {part: list(entry.get(part, ())) for part in ("hosts", "children")}
            for name, entry in found.items()
            if name != "_meta"
        },
    )


def walk(listing: Mapping[str, Any], group: str) -> Iterator[str]:
    """Hosts of a group and of its children; only these lists keep the inventory's order."""
    entry = listing.get(group, {})
    yield from entry.get("hosts", ())
    for child in entry.get("children", ()):
        yield from walk(listing, child)


def kept(variables: Mapping[str, Any]) -> dict[str, Any]:
    found = {
        name: value
        for name, value in variables.items()
        if name in KEPT or (name.startswith(KEPT_PREFIX) and name not in NEVER_KEPT)
    }
    return {**found, HAS_PASSWORD: True} if variables.keys() & set(PASSWORDS) else found
