"""The ssh configuration of orch, as OpenSSH and paramiko read it."""

from __future__ import annotations

from pathlib import Path

import paramiko
import pytest

from orchestrator.errors import RequestError
from orchestrator.load.ssh_options import host_block
from tests.support.openssh import openssh_options

ARGUMENTS = "-o 'UserKnownHostsFile=\"/known hosts\"' -oIdentitiesOnly=yes -J jump -o StrictHostKeyChecking=ask"
OTHER_ARGUMENTS = "-4Cvp 23 -i '/k e y' -o 'ProxyCommand ssh -o User=bob gate'"
OPTIONS = {"host": "10.0.0.7", "port": "2222", "user": "me", "key": "/keys/the key", "arguments": ARGUMENTS}


def test_openssh_and_paramiko_read_the_same_options(tmp_path: Path) -> None:
    text = host_block("node1", **OPTIONS) + host_block("other", host="10.0.0.8", arguments=OTHER_ARGUMENTS)
    (tmp_path / "config").write_text(text)
    options = openssh_options("-F", str(tmp_path / "config"), "node1")
    expected = {
        "hostname": "10.0.0.7",
        "port": "2222",
        "user": "me",
        "identityfile": "/keys/the key",
        "proxyjump": "jump",
        "identitiesonly": "yes",
    }
    assert {name: options[name] for name in expected} == expected
    assert options["stricthostkeychecking"] in ("true", "yes")
    paramiko_options = paramiko.SSHConfig.from_text(text).lookup("node1")
    assert paramiko_options["hostname"] == "10.0.0.7"
    assert paramiko_options["identityfile"] == ["/keys/the key"]
    assert paramiko_options["userknownhostsfile"].strip('"') == "/known hosts"
    second_node = paramiko.SSHConfig.from_text(text).lookup("other")
    assert (second_node["port"], second_node["compression"], second_node["identityfile"]) == ("23", "yes", ["/k e y"])
    assert (second_node["addressfamily"], second_node["proxycommand"]) == ("inet", "ssh -o User=bob gate")


def test_argument_that_cannot_or_must_not_be_rendered_is_rejected() -> None:
    for arguments, message in (
        ("-L8080:x:80", "option -L not recognized"),
        ("-o Port", "-o Port has no value"),
        ("-J 'me@[::1]:22'", "IPv6 address"),
        ("'", "No closing quotation"),
        ("-o StrictHostKeyChecking=no", "would not be verified"),
    ):
        with pytest.raises(RequestError, match=message):
            host_block("node1", host="h", arguments=arguments)


def test_value_cannot_add_a_line() -> None:
    for field, value in (
        ("host", "h\n    ProxyCommand id"),
        ("host", "-oProxyCommand=id"),  # host like an option
        ("node", "*"),
        ("user", "me\n    ProxyCommand id"),
        ("key", "/k\n    ProxyCommand id"),
        ("arguments", "-o 'IdentitiesOnly=yes\n    ProxyCommand id'"),
    ):
        with pytest.raises(RequestError):
            host_block(**{"node": "node1", "host": "h", field: value})
