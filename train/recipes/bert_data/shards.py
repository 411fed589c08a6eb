"""Write rows to disk: a part per block, then shards of equal size, mixed from all parts."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

SCHEMA = pa.schema(
    [
        ("input_ids", pa.list_(pa.int32())),
        ("first_segment", pa.int32()),  # tokens of segment A, with [CLS] and its [SEP]
        ("is_random_next", pa.bool_()),
        ("positions", pa.list_(pa.int32())),  # of the masked tokens
        ("labels", pa.list_(pa.int32())),  # the original tokens at these positions
    ]
)
ROWS_IN_GROUP = 1024


def write_part(path: Path, rows: list[dict[str, Any]], rng: random.Random) -> None:
    """Shuffle rows and write them as a part."""
    rng.shuffle(rows)
    write(path, pa.Table.from_pylist(rows, schema=SCHEMA))


def write(path: Path, table: Any) -> None:
    """Write a table atomically: a reader sees the whole file or none."""
    staged = path.with_name(f".{path.name}.tmp")
    pq.write_table(table, staged, row_group_size=ROWS_IN_GROUP, compression="zstd")
    staged.replace(path)


def write_shard(path: Path, parts: Sequence[Path], number: int, shards: int, rng: random.Random) -> None:
    """Write a shard with its share of every part.

    Shards differ by at most one row.
    """
    tables, before = [], 0
    for part in parts:
        file = pq.ParquetFile(part)
        count = file.metadata.num_rows
        start = sum(share(before, count, shard, shards) for shard in range(number))
        tables.append(rows_of(file, start, share(before, count, number, shards)))
        before += count
    table = pa.concat_tables([*tables, SCHEMA.empty_table()])
    order = list(range(table.num_rows))
    rng.shuffle(order)
    write(path, table.take(pa.array(order, pa.int64())))


def share(before: int, count: int, shard: int, shards: int) -> int:
    """Return how many of the `count` rows from number `before` on are `shard` modulo `shards`."""
    return (before + count - shard + shards - 1) // shards - (before - shard + shards - 1) // shards


def rows_of(file: Any, start: int, count: int) -> Any:
    """Return `count` rows from `start` on, reading only the row groups that hold them."""
    groups: list[int] = []
    first = 0
    offset = start
    for group in range(file.num_row_groups):
        rows = file.metadata.row_group(group).num_rows
        if first < start + count and first + rows > start:
            if not groups:
                offset = start - first
            groups.append(group)
        first += rows
    return file.read_row_groups(groups).slice(offset, count) if count else SCHEMA.empty_table()


def row_count(path: Path) -> int:
    return int(pq.ParquetFile(path).metadata.num_rows)
