"""Check names, addresses and keys of hosts, which are written to /etc/hosts and known_hosts of all nodes."""

from __future__ import annotations

import base64

from hypothesis import given
from hypothesis import strategies as st

from orchestrator.model.hosts import is_address, is_host_key, is_host_name
from tests.support.node_responses import make_host_key


def test_valid_host_key() -> None:
    for kind in ("ssh-ed25519", "ecdsa-sha2-nistp256", "sk-ssh-ed25519@openssh.com"):
        assert is_host_key(make_host_key(kind))


def test_invalid_host_key() -> None:
    for line in (
        "",
        "ssh-ed25519",
        "ssh-ed25519 AAAA",
        "ssh-ed25519 not base64",
        make_host_key() + "\n* " + make_host_key(),
        make_host_key() + " comment",
        "ssh-rsa " + make_host_key().split()[1],
        "@cert-authority * " + make_host_key(),
        "é " + make_host_key(),
    ):
        assert not is_host_key(line)


@given(st.text() | st.binary().map(lambda blob: "ssh-ed25519 " + base64.b64encode(blob).decode()))
def test_valid_keys_names_and_addresses_have_no_spaces_or_line_breaks(text: str) -> None:
    if is_host_key(text):
        assert len(text.split()) == 2
    if is_host_name(text) or is_address(text):
        assert len(text.split()) == 1
        assert text[0] not in "-#@|"
    assert not any(is_host_key(text + end) for end in ("\n", " x", "\r"))
    assert not any(is_host_name(text + end) for end in ("\n", "\t", " x"))
    assert not any(is_address(text + end) for end in ("\n", "%", "%a\nb"))
