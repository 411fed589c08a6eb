"""Test the data preparation of bert-pretrain: its functions, and whole preparations."""

from __future__ import annotations

import bz2
import gzip
import itertools
import lzma
import random
import re
import shutil
import sys
import tempfile
from pathlib import Path
from xml.sax.saxutils import escape

import pyarrow.parquet as pq
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tests.local.recipes import PREPARE, PRETRAINING_TEXT
from tests.support.jobs import MINILM, flags, read_results, run_ranks, start_ranks, wait_for_ranks

pytestmark = pytest.mark.xdist_group("recipes")  # they share a server of warm programs
sys.path.insert(0, str(PREPARE.parent))

from documents import blocks_of, plain_text, text_documents, wikipedia_documents  # noqa: E402
from instances import Masking, instances, sentences  # noqa: E402
from orch_training import RecipeError  # noqa: E402


def make_arguments(out: Path, **changes: object) -> list[str]:
    values: dict[str, object] = {
        "input_file": PRETRAINING_TEXT,
        "tokenizer_name": MINILM,
        "output_dir": out,
        "data_dir": out / "data",
        "lengths": "128:20,256:40",
        "shards": 3,
        "dupe_factor": 2,
        "block_mb": 0.01,
    }
    return flags(**(values | changes))


def read_files(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("prepared")
    run_ranks(PREPARE, *make_arguments(out))
    return out / "data"


def test_existing_shards_are_not_prepared_again(prepared: Path, tmp_path: Path) -> None:
    data = Path(shutil.copytree(prepared, tmp_path / "data"))
    (data / "manifest.json").unlink()
    (data / "seq128" / "shard-00001.parquet").unlink()
    modified = (data / "seq128" / "shard-00002.parquet").stat().st_mtime_ns
    run_ranks(PREPARE, *make_arguments(tmp_path))
    assert read_files(data) == read_files(prepared)
    assert (data / "seq128" / "shard-00002.parquet").stat().st_mtime_ns == modified
    ((_, out, _),) = run_ranks(PREPARE, *make_arguments(tmp_path))
    assert "is prepared already" in out


def test_preparation_with_other_settings_or_text_is_refused(prepared: Path, tmp_path: Path) -> None:
    text = tmp_path / PRETRAINING_TEXT.name
    text.write_text(PRETRAINING_TEXT.read_text().replace("e", "a"))  # as many bytes as before
    for changes, message in (
        ({"seed": 1}, "was prepared with another seed."),
        ({"input_file": text}, f"was prepared with another file 1 ({text.name})."),
    ):
        assert message in refusal(tmp_path, data_dir=prepared, **changes)


def refusal(folder: Path, **changes: object) -> str:
    ((code, _, err),) = wait_for_ranks(start_ranks(PREPARE, *make_arguments(folder, **changes)))
    assert code == 1
    assert "Traceback" not in err
    return err


def test_input_without_text_or_with_damage_is_named(dumps: list[Path], tmp_path: Path) -> None:
    empty, damaged = tmp_path / "empty.txt", tmp_path / "damaged.xml.bz2"
    empty.touch()
    damaged.write_bytes(dumps[2].read_bytes().replace(b"1AY&SY", b"1AY&SY?", 3))
    assert f"no text was found in {empty}." in refusal(tmp_path, input_file=empty)
    changes = {"kind": "wikipedia", "input_file": damaged, "data_dir": tmp_path / "other"}
    assert f"{damaged} is damaged: Invalid data stream" in refusal(tmp_path, **changes)


def test_shards_have_all_rows_and_about_as_many_each(prepared: Path, tmp_path: Path) -> None:
    run_ranks(PREPARE, *make_arguments(tmp_path, shards=1))
    blocks = blocks_of([PRETRAINING_TEXT], int(0.01 * (1 << 20)))
    assert len(blocks) > 1
    for name in ("seq128", "seq256"):
        (expected,), shards = (
            [pq.read_table(path).to_pylist() for path in (folder / name).iterdir()]
            for folder in (tmp_path / "data", prepared)
        )
        assert sorted(map(str, expected)) == sorted(str(row) for rows in shards for row in rows)
        assert max(map(len, shards)) - min(map(len, shards)) <= len(blocks)


def test_two_nodes_prepare_the_same_data_as_one_without_a_shared_file_system(prepared: Path, tmp_path: Path) -> None:
    nodes = [tmp_path / "a", tmp_path / "b"]
    for node in nodes:
        node.mkdir()
    run_ranks(PREPARE, *make_arguments(Path("."), data_dir="data"), ranks=2, folders=nodes)
    for node in nodes:
        assert read_files(node / "data") == read_files(prepared)


@given(st.lists(st.text("ab c.\u00e4", max_size=12), max_size=12), st.integers(1, 40))
@example(["a", "", "", "b"], 4)  # the gap continues in the next block
def test_each_document_is_in_one_block(lines: list[str], size: int) -> None:
    text = "\n".join(lines)
    expected = [document.strip() for document in text.split("\n\n") if document.strip()]
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "t.txt"
        file.write_text(text)
        documents = [document for block in blocks_of([file], size) for document in text_documents(block)]
    assert sorted(documents) == sorted(expected)


TEXT = "One document.\n\nCaf\u00e9 au lait.\n"
DAMAGED_TEXTS = {
    "gzip": (gzip.compress(TEXT.encode()), "not UTF-8 text: byte "),
    "bz2": (bz2.compress(TEXT.encode()), "not UTF-8 text: byte "),
    "xz": (lzma.compress(TEXT.encode()), "not UTF-8 text: byte 5: a NUL"),
    "utf-16": (TEXT.encode("utf-16-le"), "not UTF-8 text: byte 1: a NUL"),
    "utf-16-with-mark": (TEXT.encode("utf-16"), "not UTF-8 text: byte 3: a NUL"),
    "latin-1": (TEXT.encode("latin-1"), "not UTF-8 text: byte 18: invalid continuation byte"),
    "program": (Path(sys.executable).read_bytes()[:9999], "not UTF-8 text: byte "),
    "late-windows-lines": (b"A document.\n\n" * 90_000 + b"Another one.\r\n\r\n", "has Windows line endings"),
}


@pytest.mark.parametrize(("content", "message"), DAMAGED_TEXTS.values(), ids=DAMAGED_TEXTS)
def test_file_that_is_no_text_with_unix_lines_is_refused(tmp_path: Path, content: bytes, message: str) -> None:
    file = tmp_path / "t.txt"
    file.write_bytes(content)
    with pytest.raises(RecipeError, match=re.escape(f"{file} ") + ".*" + message):
        _ = [document for block in blocks_of([file], 1 << 19) for document in text_documents(block)]


MASKING = Masking(
    cls=1,
    sep=2,
    mask=3,
    ordinary=tuple(range(10, 99)),
    length=64,
    predictions=10,
    masked_lm_prob=0.15,
    short_seq_prob=0.1,
)


def make_documents(seed: int) -> list[list[list[int]]]:
    rng = random.Random(seed)
    return [
        [[rng.randrange(10, 99) for _ in range(rng.randint(1, 30))] for _ in range(rng.randint(1, 9))]
        for _ in range(12)
    ]


def test_instances_are_masked_like_those_of_bert() -> None:
    rows = [row for seed in range(20) for row in instances(make_documents(seed), MASKING, random.Random(seed))]
    kinds = {"masked": 0, "same": 0, "other": 0}
    for row in rows:
        ids = row["input_ids"]
        assert len(ids) <= 64
        assert ids[0] == 1
        assert ids[-1] == 2
        assert ids[row["first_segment"] - 1] == 2
        assert ids.count(2) == 2
        assert 1 <= len(row["positions"]) <= min(10, max(1, round(len(ids) * 0.15)))
        for position, label in zip(row["positions"], row["labels"], strict=True):
            assert label >= 10
            token = ids[position]
            kinds["masked" if token == MASKING.mask else "same" if token == label else "other"] += 1
    total = sum(kinds.values())
    assert kinds["masked"] / total == pytest.approx(0.8, abs=0.03)
    assert kinds["same"] / total == pytest.approx(0.1, abs=0.03)
    assert 0.45 < sum(row["is_random_next"] for row in rows) / len(rows) < 0.7


def test_text_is_split_into_sentences() -> None:
    text = 'Dr. No met J. Smith. "Who are you?" he asked. It was 3.5 km away!\nA new line'
    assert sentences(text) == ["Dr. No met J. Smith.", '"Who are you?" he asked.', "It was 3.5 km away!", "A new line"]


# Wikipedia.

WIKI = """{{Infobox|x=1}}'''The mole''' is a [[mammal]] of [[soil|the soil]].<ref>A book.</ref> It
digs.
[[File:Mole.jpg|thumb|A mole.]]
== Life ==
* a list
It lives ''alone'' and sleeps {{convert|4|h}} at a time.

{| class="wikitable"
| cell.
|}
[[Category:Moles]]"""
PLAIN = "digs.\nIt lives alone and sleeps  at a time."


def make_page(title: str, text: str, ns: int = 0, redirect: str = "") -> str:
    return (
        f"  <page>\n<title>{title}</title><ns>{ns}</ns>{redirect}<revision>"
        f"<text>{escape(text)}</text></revision>\n  </page>\n"
    )


@pytest.fixture(scope="module")
def dumps(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Return a dump as XML, as one bz2 stream and as many streams, which do not end where pages end."""
    body = "".join(make_page(f"p{n}", f"Article {n} has a text. " + "Words. " * (n % 7)) for n in range(60))
    body += make_page("Talk:x", "Not an article.", ns=1)
    body += make_page("r", "#REDIRECT [[p1]].", redirect='<redirect title="p1" />')
    data = f"<mediawiki>\n<siteinfo/>\n{body}</mediawiki>\n".encode()
    folder = tmp_path_factory.mktemp("dumps")
    pieces = [data[start : start + 700] for start in range(0, len(data), 700)]
    contents = {"d.xml": data, "one.xml.bz2": bz2.compress(data), "many.xml.bz2": b"".join(map(bz2.compress, pieces))}
    for name, content in contents.items():
        (folder / name).write_bytes(content)
    return [folder / name for name in contents]


def articles_of(dump: Path, block_size: int) -> list[str]:
    return [article for block in blocks_of([dump], block_size) for article in wikipedia_documents(block, 5)]


def test_each_article_is_read_once_for_any_block_size(dumps: list[Path]) -> None:
    for dump, size in itertools.product(dumps, (150, 997, 10**6)):
        assert sorted(int(article.split()[1]) for article in articles_of(dump, size)) == list(range(60)), dump.name


@pytest.mark.parametrize("size", [150, 10**6])
def test_dump_whose_end_is_missing_is_named(dumps: list[Path], tmp_path: Path, size: int) -> None:
    for dump in dumps:
        cut = tmp_path / dump.name
        cut.write_bytes(dump.read_bytes()[:-200])
        with pytest.raises(RecipeError, match=f"{cut} is cut off"):
            articles_of(cut, size)


def test_markup_is_removed() -> None:
    assert plain_text(WIKI).split() == PLAIN.split()


def test_dump_is_prepared(dumps: list[Path], tmp_path: Path) -> None:
    changes = {"kind": "wikipedia", "input_file": dumps[2], "min_article_chars": 5, "block_mb": 0.001}
    run_ranks(PREPARE, *make_arguments(tmp_path, **changes))
    assert read_results(tmp_path)["rows_seq128"] >= 60
    changes["min_article_chars"] = 6
    assert "was prepared with another min_article_chars." in refusal(tmp_path, **changes)
