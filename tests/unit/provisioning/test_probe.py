"""Check that results of the probe are untrusted input: invalid ones are rejected."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.files import SHARE, STANDALONE
from orchestrator.load.records import InvalidResponse, dump, validate
from orchestrator.model.facts import Facts
from orchestrator.provisioning import probe
from orchestrator.provisioning.playbook import UNSAFE, render_variables
from orchestrator.provisioning.probe import fabric_checks_version
from orchestrator.provisioning.ssh_settings import known_hosts, ssh_config
from tests.support.hostile import ESCAPE_SEQUENCE, JSON
from tests.support.node_responses import make_probe_result, make_reported_facts

ROLE = "playbooks/roles/fabric"
NODE = "train/lib/orch_node"


def test_valid_result_becomes_a_probe_with_the_family_of_its_distribution() -> None:
    node = probe.parse_probe("node0", make_probe_result(name="x", skew=9.0))
    assert (node.name, node.family, node.python, node.skew) == ("node0", "debian", [3, 11, 2], 0.0)
    for release, family in (
        ({"id": "ubuntu", "like": "debian"}, "debian"),
        ({"id": "rocky", "like": "rhel centos fedora"}, "rhel"),
        ({"id": "fedora", "like": ""}, "rhel"),
        ({"id": "sles", "like": "suse"}, ""),
    ):
        assert probe.parse_probe("node0", make_probe_result(os=release)).family == family


def test_facts_of_this_machine_are_valid() -> None:
    done = subprocess.run([sys.executable, str(STANDALONE / "facts.py")], capture_output=True)
    validate(Facts, json.loads(done.stdout), "this machine")


HOSTILE = ["a\nb", "-oProxyCommand=id", ESCAPE_SEQUENCE, "{{ 1 }}", "$(id)", "a b", "", 7, None, ["x"]]


def test_invalid_text_in_a_result_is_rejected() -> None:
    names = ("user", "root", "machine", "python_path", "libc", "host_keys", "missing")
    for name, text in product(names, HOSTILE):
        if (name, text) == ("libc", ""):
            continue  # musl
        value = [text] if name in ("host_keys", "missing") else text
        with pytest.raises(InvalidResponse, match=f"node0 returned an invalid probe: {name}"):
            probe.parse_probe("node0", make_probe_result(**{name: value}))


def test_invalid_text_in_the_facts_is_rejected() -> None:
    names = "hostname python flags address interface mpi package version library fingerprint"
    for name, text in product(names.split(), HOSTILE):
        if (text == "" and name == "fingerprint") or (name in ("interface", "package") and not isinstance(text, str)):
            continue  # valid, and impossible in JSON
        if name in ("version", "package") and text in ("-oProxyCommand=id", "$(id)"):
            continue  # valid: it is only compared and printed
        changes: dict[str, Any] = {
            "flags": {"flags": [text]},
            "address": {"interfaces": {"eth0": [text]}},
            "mpi": {"mpi": {"intel": text}},
            "version": {"packages": {"torch": text}},
            "library": {"libraries": {"a.so": text}},
            "interface": {"interfaces": {str(text): []}},
            "package": {"packages": {str(text): "1"}},
        }.get(name, {name: text})
        with pytest.raises(InvalidResponse):
            probe.parse_probe("node0", make_probe_result(facts=make_reported_facts(**changes)))


def test_invalid_numbers_and_gpus_in_the_facts_are_rejected() -> None:
    numbers = (-1, 1 << 70, 1.5, "1", True, [{"cpu": -1}], [])
    gpus = ({}, {"index": -1, "vendor": "amd"}, {"index": 0, "vendor": "a b"}, 1)
    changes = [{name: value} for name in ("cpus", "memory_bytes", "shm_bytes") for value in numbers]
    for change in (*changes, *({"gpus": [gpu]} for gpu in gpus)):
        with pytest.raises(InvalidResponse):
            probe.parse_probe("node0", make_probe_result(facts=make_reported_facts(**change)))
    with pytest.raises(InvalidResponse):
        probe.parse_probe("node0", make_probe_result(time=float("nan")))


def test_unsafe_names_are_rejected_with_a_printable_message() -> None:
    for changes in (
        {"packages": {UNSAFE: "x"}},
        {"interfaces": {"__ansible_type": []}},
        {"packages": {ESCAPE_SEQUENCE: "1"}},
    ):
        with pytest.raises(InvalidResponse) as error:
            probe.parse_probe("node0", make_probe_result(facts=make_reported_facts(**changes)))
        assert error.value.message.isprintable()
    with pytest.raises(ValueError, match="not a valid name of a variable"):
        render_variables({"facts": {UNSAFE: "{{ 1 }}"}})


@given(st.data())
def test_any_change_of_a_result_is_accepted_or_rejected(data: st.DataObject) -> None:
    """Replace one value of a valid result by any other value."""
    result = make_probe_result()
    container: Any = result
    while True:
        keys = sorted(container) if isinstance(container, dict) else list(range(len(container)))
        key = data.draw(st.sampled_from(keys))
        inner = container[key]
        if not (isinstance(inner, (dict, list)) and inner) or data.draw(st.booleans()):
            container[key] = data.draw(JSON)
            break
        container = inner
    try:
        node = probe.parse_probe("node0", result)
    except InvalidResponse:
        return
    addresses = {"node0": "10.0.0.1"}
    assert len(known_hosts((node,), addresses, {"node0": 22}).splitlines()) == len(node.host_keys)
    assert len(ssh_config((node,), addresses, {"node0": 22}, "/r").splitlines()) == 17
    json.loads(render_variables({"nodes": {"node0": dump(node.facts)}}))


def test_version_depends_on_the_files_that_decide_the_results_only(tmp_path: Path) -> None:
    """Add a line to one file after the other."""
    for part in (ROLE, NODE):
        shutil.copytree(SHARE / part, tmp_path / part)
    shutil.copy(SHARE / "train/node.py", tmp_path / "train")
    decisive = [f"{NODE}/protocol/values.py", f"{ROLE}/tasks/main.yml"]  # an import of an import, and a task
    version = fabric_checks_version(tmp_path)
    for name in (*decisive, f"{NODE}/supervisor/supervisor.py"):
        with (tmp_path / name).open("a") as file:
            file.write("# another\n")
        assert (fabric_checks_version(tmp_path) != version) == (name in decisive), name
        version = fabric_checks_version(tmp_path)
