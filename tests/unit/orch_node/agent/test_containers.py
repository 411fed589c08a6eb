"""Commands for the container engine of a node, and its error messages."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from unittest import mock

import pytest
from orch_node.agent import containers
from orch_node.protocol import container
from orch_node.protocol.agent import CONTAINER, Response
from orch_node.protocol.container import ContainerSpec, EnvFileError, RankRequest
from orch_node.supervisor.attempt import Attempt

from tests.conftest import HOSTILE_TEXTS
from tests.support.layouts import make_layout

SPEC = ContainerSpec(image="orch:current", start="rank", python="python3", preload=(), processes={}, options=())
PLACEMENT = make_layout("node0").ranks[0]


def test_env_file_is_read_like_docker_does(tmp_path: Path) -> None:
    file = tmp_path / "own env"
    file.write_bytes(b"\xef\xbb\xbf# a comment\n\n  TOKEN=a b=c # no comment\r\nEMPTY=\nINHERITED\nUNSET\n")
    expected = {"TOKEN": "a b=c # no comment", "EMPTY": "", "INHERITED": "of the node"}
    assert container.read_variables(file, {"INHERITED": "of the node"}) == expected


def test_env_file_error_does_not_show_the_value(tmp_path: Path) -> None:
    for line in (b"a b=secret", b"=secret", b"x;id=secret", b"\xff=secret"):
        (tmp_path / "env").write_bytes(b"A=1\n" + line)
        with pytest.raises(EnvFileError, match=r"line 2 is not NAME=VALUE|not UTF-8") as exc_info:
            container.read_variables(tmp_path / "env", {})
        assert "secret" not in str(exc_info.value)


def test_entrypoint_gets_secrets_by_standard_input() -> None:
    secrets = {f"KEY{number}": f"{text}\n" for number, text in enumerate(HOSTILE_TEXTS)}
    secrets["TOKEN"] = "line\nbreak"
    program = "import json, os, sys; print(json.dumps([dict(os.environ), sys.argv[1:], sys.stdin.read()]))"
    entrypoint = [sys.executable, "-c", program]
    order = RankRequest(PLACEMENT, {}, HOSTILE_TEXTS, "/runs/r/ranks/rank-0.log")
    command = containers.entry_command(Path("/runs/r"), SPEC, order, ["A"], entrypoint)
    options = ["--rm", "--env", "A", "--interactive", "--entrypoint", "/bin/sh", "orch:current"]
    assert command[command.index("--rm") :][:7] == options
    in_container = ["/bin/sh", *command[command.index("orch:current") + 1 :]]
    process = subprocess.run(in_container, input=containers.as_exports(secrets), capture_output=True, check=True)
    environment, *received = json.loads(process.stdout)
    assert {name: environment[name] for name in secrets} == secrets
    assert received == [list(HOSTILE_TEXTS), ""]


def test_image_with_other_packages_on_a_node_is_refused(tmp_path: Path) -> None:
    (tmp_path / "container.json").write_text(container.render(SPEC))
    responses = {f"node{number}": Response(CONTAINER, packages={"einops": f"0.{number}"}) for number in range(2)}
    agents = mock.Mock(**{"request_each.return_value": responses})
    attempt = mock.Mock(run_dir=tmp_path, layout=make_layout("node0", "node1"), agents=agents)
    assert "orch:current differs between nodes: einops is 0.0 on node0 and 0.1 on" in Attempt.start_containers(attempt)


def test_error_of_any_version_of_docker_is_named() -> None:
    error = "docker: Error response from daemon: No such image: x:1"
    for output in (
        f"{error}.\nSee 'docker run --help'.",  # 20.10, of Debian 12
        f"WARNING: no swap limit\n{error}\n\nRun 'docker run --help' for more information",
        f"{error}\n\nUsage:  docker run [OPTIONS] IMAGE\n\nRun 'docker run --help' for more information",
    ):
        assert containers.explain_error(output).startswith(f"{error}. Load it")
    assert containers.explain_error("exit code 1") == "exit code 1"
