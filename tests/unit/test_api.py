"""Check that the Python interface has all options of `orch train`."""

from __future__ import annotations

import inspect
from dataclasses import fields

from orchestrator import api
from orchestrator.planning.request import TrainRequest

RENAMED = {"script_args": "args", "options": "target_options"}


def test_train_has_all_options_of_the_command_line() -> None:
    parameters = [name for name in inspect.signature(api.train).parameters if name != "options"]
    options = api.TrainOptions.__annotations__
    expected = {RENAMED.get(item.name, item.name) for item in fields(TrainRequest)}
    assert {*parameters, *options} == {*expected, "venv"}
    assert not {*parameters} & {*options}


def test_submit_has_the_parameters_of_train_except_for_what_the_function_replaces() -> None:
    train, submit = (inspect.signature(function).parameters for function in (api.train, api.submit))
    assert {*train} - {*submit} == {"recipe", "settings"}
