"""The rows of a shard file, and the order in which they are fed."""

from pathlib import Path

import orjson
import pytest

from shardline.shard_file import Shard


def make_shard(folder: Path, hints: list[object]) -> Shard:
    lines = [
        {"custom_id": str(n), "body": {"max_tokens": 5, "metadata": {"expected_tokens": hint}}}
        for n, hint in enumerate(hints)
    ]
    path = folder / "shard.jsonl"
    path.write_bytes(b"".join(orjson.dumps(line) + b"\n" for line in lines))
    return Shard("shard-00000-000", path)


def test_rows_that_are_expected_to_be_long_come_first(tmp_path: Path) -> None:
    assert make_shard(tmp_path, ["7", "90", "8"]).in_order() == [1, 2, 0]


@pytest.mark.parametrize("hint", ["9" * 5_000, "²", "-3", "", "many", 9, {"expected_tokens": "9"}])
def test_a_hint_that_is_no_number_of_tokens_is_passed_over(tmp_path: Path, hint: object) -> None:
    assert make_shard(tmp_path, [hint]).expected(0) == 5
