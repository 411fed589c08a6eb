"""The origin of a run, read from git checkouts."""

from __future__ import annotations

import hashlib
import json
import os
from dataclasses import replace
from pathlib import Path

from orch_node.protocol import values

from orchestrator.planning.request import TrainRequest
from orchestrator.runs.origin import Origin, git_state, origin_of, script_of
from orchestrator.stacks.stack import Stack
from orchestrator.targets.ssh.plan import plan_train
from tests.conftest import make_cluster, require_program
from tests.support.files import write_files
from tests.support.plans import LOCAL_SITE, QA_RECIPE, make_inputs
from tests.support.projects import commit, git


def test_checkout_has_changed_if_its_script_is_changed_or_untracked(tmp_path: Path) -> None:
    require_program("git")
    script = write_files(tmp_path / "two words", {"it's.py": "print(1)\n"}) / "it's.py"
    git(tmp_path, "init", "--quiet")
    commit(tmp_path)
    for name in (b"runs.txt", b"not-utf-8-\xff.bin"):
        (script.parent / os.fsdecode(name)).write_text("not known to git")
    state = git_state(script)
    assert len(state.commit) == 40
    assert not state.changed
    script.write_text("print(2)\n")
    assert git_state(script).changed == ("two words/it's.py",)
    assert script_of(script).sha256 == hashlib.sha256(b"print(2)\n").hexdigest()
    untracked_script = script.with_name("new.py")
    untracked_script.write_text("")
    assert git_state(untracked_script).changed == ("two words/it's.py", "new.py")
    (tmp_path / ".git/HEAD").write_text("damaged")
    assert git_state(script) is None


def test_origin_has_the_settings_and_the_command(test_stack: Stack, tmp_path: Path) -> None:
    path = tmp_path / "x.py"
    path.write_text("")
    request = TrainRequest(recipe="qa", script_args=("--data_seed", "7"))
    assert script_of(path).git is None
    recipe = replace(QA_RECIPE, script=str(path), defaults={"seed": 3, "epochs": 2})
    plan = plan_train(request, make_inputs(make_cluster(), recipe, test_stack), LOCAL_SITE)
    result = origin_of(plan)
    assert result.settings == {"seed": 3, "epochs": 2}
    assert result.command.argv[0] == "/venv/bin/python"
    assert result.fingerprints == {"": "node0"}
    assert values.read(Origin, json.loads(json.dumps(values.record(result))), "", ignore_unknown=True) == result
