from __future__ import annotations

import subprocess
from pathlib import Path

import paramiko
import pytest

from orchestrator.errors import RequestError
from orchestrator.model.ssh_options import SshOptions, render
from tests.conftest import require_program

FAR = SshOptions(
    node="node1",
    host="10.0.0.7",
    port="2222",
    user="me",
    key="/keys/the key",
    arguments="-o 'UserKnownHostsFile=\"/known hosts\"' -oIdentitiesOnly=yes -J jump -o StrictHostKeyChecking=ask",
)


def openssh(text: str, tmp_path: Path) -> dict[str, str]:
    """Return the options that the real ssh reads from a configuration."""
    require_program("ssh")
    (tmp_path / "config").write_text(text)
    done = subprocess.run(
        ["ssh", "-G", "-F", str(tmp_path / "config"), "node1"], capture_output=True, text=True, check=True
    )
    return dict(line.split(" ", 1) for line in done.stdout.splitlines() if " " in line)


def test_openssh_and_paramiko_read_the_same(tmp_path: Path) -> None:
    text = render([FAR, SshOptions(node="other", host="10.0.0.8")])
    openssh_options = openssh(text, tmp_path)
    assert (openssh_options["hostname"], openssh_options["port"], openssh_options["user"]) == ("10.0.0.7", "2222", "me")
    assert openssh_options["identityfile"] == "/keys/the key"
    assert openssh_options["proxyjump"] == "jump"
    assert openssh_options["identitiesonly"] == "yes"
    paramiko_options = paramiko.SSHConfig.from_text(text).lookup("node1")
    assert paramiko_options["hostname"] == "10.0.0.7"
    assert paramiko_options["identityfile"] == ["/keys/the key"]
    assert paramiko_options["userknownhostsfile"].strip('"') == "/known hosts"


def test_host_keys_are_always_checked(tmp_path: Path) -> None:
    assert openssh(render([FAR]), tmp_path)["stricthostkeychecking"] in ("true", "yes")


def test_an_argument_that_cannot_be_carried_is_named() -> None:
    with pytest.raises(RequestError, match="ssh argument -L8080:x:80"):
        render([SshOptions(node="node1", host="h", arguments="-L8080:x:80")])


@pytest.mark.parametrize(
    "words", ["-o StrictHostKeyChecking=no", "-o UserKnownHostsFile=/dev/null", "-o 'StrictHostKeyChecking off'"]
)
def test_a_record_that_turns_that_off_is_refused(words: str) -> None:
    with pytest.raises(RequestError, match="host keys would not be verified"):
        render([SshOptions(node="node1", host="h", arguments=words)])


@pytest.mark.parametrize(
    "changes",
    [
        {"host": "h\n    ProxyCommand id"},
        {"host": "-oProxyCommand=id"},
        {"node": "*"},
        {"user": "me\n    ProxyCommand id"},
        {"key": "/k\n    ProxyCommand id"},
        {"arguments": "-o 'IdentitiesOnly=yes\n    ProxyCommand id'"},
    ],
)
def test_a_value_is_never_another_line(changes: dict[str, str]) -> None:
    with pytest.raises(RequestError):
        render([SshOptions(**{"node": "node1", "host": "h", **changes})])
