"""Read known_hosts files as ssh does, and explain what sshd refuses."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock

import paramiko
import pytest

from orchestrator.errors import ConnectionLost, ExecuteError
from orchestrator.operations.output import RanksOutput
from orchestrator.targets.connections.connection import Ssh, trust_known_hosts_only
from tests.conftest import require_program
from tests.support.files import write_files

KEY, OTHER_KEY = (f"{key.get_name()} {key.get_base64()}" for key in (paramiko.ECDSAKey.generate() for _ in range(2)))


NAME = "[10.1.2.3]:2222"
DAMAGED = f"{NAME} {KEY[:-3]}\n{NAME} ssh-rsa"


def test_known_hosts_are_read_as_ssh_does(tmp_path: Path) -> None:
    require_program("ssh-keygen")
    files = f'UserKnownHostsFile "{tmp_path}/keys of user"\nGlobalKnownHostsFile {tmp_path}/system\n'
    config = f"{files}HostName 10.1.2.3\nPort 2222\nHost n2\nHostKeyAlias alias\n"
    for host, user_file, system_file, expected in (
        ("n1", f"{DAMAGED}\n@cert-authority * {OTHER_KEY}\n10.* {KEY}", "", [KEY]),  # pattern
        ("n1", "", f"{NAME} {KEY}", [KEY]),
        ("n1", f"10.1.2.3 {KEY}", f"@revoked {NAME} {KEY}", []),
        ("n1", f"{NAME} {KEY}", f"@revoked {NAME} {KEY}", []),
        ("n2", f"alias {KEY}\n{NAME} {OTHER_KEY}", "", [KEY]),
    ):
        write_files(tmp_path, {"config": config, "keys of user": user_file, "system": system_file})
        connection = Ssh(host, str(tmp_path / "config")).new_connection()
        trust_known_hosts_only(connection)
        keys = connection.client.get_host_keys().get(NAME, {}).values()
        assert [f"{key.get_name()} {key.get_base64()}" for key in keys] == expected


class Transport:
    """A connection whose sshd opens no session."""

    def is_active(self) -> bool:
        return True

    def open_session(self) -> None:
        raise paramiko.SSHException("EOF during negotiation")


def test_refused_session_silence_and_missing_sftp_server_are_explained() -> None:
    """Some administrators set MaxSessions to 1, have no package of the SFTP server, or replace it by ForceCommand."""

    def refuse() -> None:
        raise paramiko.ChannelException(2, "Connect failed")

    node = Ssh("n1", None)
    node.__dict__["connection"] = SimpleNamespace(transport=Transport())
    with pytest.raises(ExecuteError, match="second session") as exc_info:
        node.attempt(refuse, "run sh")
    assert "MaxSessions" in exc_info.value.hint
    with pytest.raises(ExecuteError, match="n1: could not start its SFTP server: EOF"):
        _ = node.sftp
    with pytest.raises(ConnectionLost, match="n1: could not read x: no answer"):
        node.attempt(Mock(side_effect=TimeoutError), "read x")


def test_warning_about_late_output_is_two_sentences(tmp_path: Path) -> None:
    for reason in ("n1: no answer", "n1: no answer."):
        screen = Mock(of_ranks="0")
        RanksOutput(Mock(folder=tmp_path / "r1"), screen).warn_once(reason)
        assert "missing: n1: no answer. Complete output: orch logs r1 " in screen.note.call_args.args[0]
