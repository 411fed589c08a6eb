"""Read the files that a request names, and the variables of --env and --env-file."""

from __future__ import annotations

from pathlib import Path

import pytest

from orchestrator.errors import RequestError
from orchestrator.load import inputs
from orchestrator.load.inputs import environment
from orchestrator.planning.request import TrainRequest
from tests.support.files import write_files


def test_project_of_a_module_is_sent_if_this_machine_finds_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    request = TrainRequest(recipe="my_model.train", module=True)
    for base, folder in ((tmp_path / "a", "."), (tmp_path / "b", "src"), (tmp_path / "c", "lib")):
        pyproject = "[project]\nname = 'my-model'\ndependencies = []\n"
        write_files(base, {"pyproject.toml": pyproject, f"{folder}/my_model/train.py": ""})
        monkeypatch.chdir(base)
        result = inputs(request, image="the image").recipe
        assert (result.project is not None) is (folder != "lib")
        assert result.source_folder == (str(base / "src") if folder == "src" else "")


SHELL = {"LANG": "C", "HF_TOKEN": "hf_x"}


def test_options_override_the_file(tmp_path: Path) -> None:
    file = tmp_path / "variables.env"
    file.write_text("# common\nA=1\nB=two words\nLANG\nUNSET\n")
    assert environment(("B=", "C=x=y"), file, SHELL) == {"A": "1", "B": "", "LANG": "C", "C": "x=y"}
    result = environment(("LANG", "TOKENIZERS_PARALLELISM=true"), None, SHELL)
    assert result == {"LANG": "C", "TOKENIZERS_PARALLELISM": "true"}


def test_a_wrong_variable_is_refused_without_its_value() -> None:
    for assignment, message in (
        ("UNSET", "--env UNSET: the variable is not set here"),
        ("1A=x", "--env '1A': not the name of a variable"),
        ("=x", "--env '': not the name"),
        ("A=\0", "--env 'A': not the name"),
        ("RANK=1", "RANK: orch or the launcher sets this variable"),
        ("OMP_NUM_THREADS=1", "OMP_NUM_THREADS: orch or the launcher sets"),
        ("HF_TOKEN", "HF_TOKEN: the record of the run would show a secret"),
        ("AWS_SECRET_ACCESS_KEY=x", "AWS_SECRET_ACCESS_KEY: the record"),
    ):
        with pytest.raises(RequestError) as exc_info:
            environment((assignment,), None, SHELL)
        assert exc_info.value.message.startswith(message)
        assert "hf_x" not in exc_info.value.message + exc_info.value.hint
