"""Check that the Python interface has all options of `orch train`."""

from __future__ import annotations

import inspect
import traceback
from dataclasses import fields
from multiprocessing import Queue
from pathlib import Path

import pytest
from typer.testing import CliRunner

import orch
from orchestrator import api
from orchestrator.cli import main
from orchestrator.cli.train import CHANGES
from orchestrator.planning.request import TrainRequest

RENAMED = {"script_args": "args", "options": "target_options"}


def test_train_submit_and_resume_have_all_options_of_the_command_line() -> None:
    parameters = {*inspect.signature(api.train).parameters} - {"options"}
    names = {RENAMED.get(item.name, item.name) for item in fields(TrainRequest)} - {"defaults"}
    assert {*api.TrainOptions.__annotations__} | parameters == {*names, "venv"}
    assert {*CHANGES} <= {*inspect.signature(api.resume).parameters}


def test_wrong_argument_is_an_error_with_a_hint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for call, message, hint in (
        (lambda: orch.train("train.py", args="--epochs 3"), "args is a text, not a list: '--epochs 3'", "args=['--epo"),
        (
            lambda: orch.train("bert-qa", image="x", image_options="a=b"),
            "image_options is 'a=b': expected a valid array",
            "--help-all",
        ),
        (lambda: orch.train("bert-qa", on="slurm", target_options={"slurm_file": "missing.toml"}), "missing.toml", ""),
        (lambda: orch.train("bert-qa", target_options={"slurm": ["a=b"]}), "options are for a target", ""),
        (lambda: orch.train("nosuch", target_options={}), "no recipe 'nosuch'", ""),
        (lambda: orch.train("bert-qa", settings={"config_name": None}), "config_name is None", "text, a number, True"),
        (lambda: orch.train("bert-qa", env={"TEAM": None}), "env: TEAM is None", "omit"),
        (lambda: orch.train("bert-qa", env=["A=1"]), "env is ['A=1'], not a dictionary", "env={"),
        (lambda: orch.train("bert-qa", ppn=0), "--ppn 0: expected a number", "--ppn 4"),
        (lambda: orch.train("bert-qa", max_restart=1), "no option 'max_restart'", "'max_restarts'"),  # unknown option
        (
            lambda: orch.train("bert-qa", stall_timeout="x"),
            "stall_timeout is 'x': expected a valid number",
            "--help-all",
        ),
        (lambda: orch.train("bert-qa", pnn=1), "no option 'pnn'", "'ppn'"),
        (lambda: orch.submit(len, args=([],)), "no argument 'args'", "after the function"),
        (lambda: orch.submit(len, Queue()), "cannot be pickled", "Create"),
        (lambda: orch.submit("evaluate"), "'evaluate' is not a function", "without ()"),
        (lambda: orch.submit(len, [], project="."), "no argument 'project'", "module"),
        (lambda: orch.submit(len, [], wait_for_cores=True), "not wait for cores", "later"),  # waiting
    ):
        (tmp_path / "train.py").write_text("")
        monkeypatch.chdir(tmp_path)
        with pytest.raises(orch.OrchError) as caught:
            call()
        assert message in str(caught.value)
        assert hint in caught.value.hint, caught.value.hint
        assert not (tmp_path / "runs").exists()


def test_traceback_of_an_error_shows_its_hint() -> None:
    error = orch.OrchError("There is no script 'x.py'.", hint="Did you mean y.py?")
    assert "hint: Did you mean y.py?" in "".join(traceback.format_exception(error))


def test_values_of_a_node_that_is_not_recorded_are_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    (tmp_path / "lab.yml").write_text("all: {hosts: {node0: {}}}")
    (node,) = orch.nodes(tmp_path / "lab.yml")
    assert {name for name, value in node.items() if value is not None} == {"node", "state"}
    table = CliRunner().invoke(main.make_app("nodes"), ["nodes", str(tmp_path / "lab.yml")]).stdout
    assert table.splitlines()[1].split()[:4] == ["node0", "unknown", "-", "-"]
    table = CliRunner().invoke(main.make_app("nodes"), ["nodes", str(tmp_path / "lab.yml"), "--live"]).stdout
    assert table.splitlines()[1].split(maxsplit=1)[1].startswith("not provisioned yet ")
