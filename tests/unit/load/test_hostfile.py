"""Read hostfiles of MPI implementations and batch systems."""

from __future__ import annotations

import re
import socket
from pathlib import Path

import pytest

from orchestrator.errors import RequestError
from orchestrator.load.hostfile import load_hostfile, parse_hostfile


def test_hostfile_has_each_host_once() -> None:
    for text, hosts, slots in (
        ("node1:4\nnode2:4  # rack 2\n\n", ["node1", "node2"], {4}),  # mpich
        ("node1 slots=4 max_slots=8\n# node3 slots=4\nnode2 slots=2\n", ["node1", "node2"], {2, 4}),  # openmpi
        ("10.0.0.1 slots=2 username=al\nbob@10.0.0.2\nfd00::3\n", ["al@10.0.0.1", "bob@10.0.0.2", "fd00::3"], {1, 2}),
        ("node[1-3,7],gpu01\n", ["node[1-3,7]", "gpu01"], {1}),  # slurm
        ("[fe80::2]:4\n[fe80::3] slots=4\n", ["fe80::2", "fe80::3"], {4}),  # brackets
        ("n1\nn1\nn2\n", ["n1", "n2"], {1, 2}),  # pbs
        ("n1 4 all.q@n1 UNDEFINED\nn2 4 all.q@n2 <NULL>\n", ["n1", "n2"], {4}),  # grid-engine
    ):
        result = parse_hostfile(text, "hostfile")
        assert (list(result), {*result.values()}) == (hosts, slots)


def test_standard_input_may_be_a_socket(monkeypatch: pytest.MonkeyPatch) -> None:
    receiver, sender = socket.socketpair()
    with receiver, receiver.makefile() as stdin, sender:
        sender.sendall(b"node1:4\nnode2\n")
        sender.shutdown(socket.SHUT_WR)
        monkeypatch.setattr("sys.stdin", stdin)
        assert load_hostfile(Path("-")) == {"node1": 4, "node2": 1}


def test_line_of_another_format_is_named() -> None:
    for text, message in (
        ("# hosts\nall:\n  hosts:\n", "line 2: this looks like an Ansible inventory"),  # yaml
        ("Host node1\n  User alice\n", "looks like an SSH configuration"),
        ("127.0.0.1 localhost\n", "looks like a file such as /etc/hosts"),
        ("hostA 4 hostB 4\n", "line 1: unexpected '4' after the host"),  # lsf
        ("n1 ansible_host=10.0.0.1\n", "looks like an Ansible inventory"),
        ("n1 slots=2\nn2 slot=4\n", "line 2: unknown setting 'slot=4'"),
        ("node1:2222\n", "'2222' is not a number of slots"),  # port
    ):
        with pytest.raises(RequestError, match=re.escape(message)):
            parse_hostfile(text, "hostfile")
