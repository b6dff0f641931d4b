"""A file is compared with what S3's ETag says about its bytes."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from shardline.weights.checksum import Match, check_blob, check_file, part_sizes

MIB = 1 << 20


def e_tag_of_parts(content: bytes, part_bytes: int) -> str:
    parts = [content[i : i + part_bytes] for i in range(0, len(content), part_bytes)]
    whole = hashlib.md5(b"".join(hashlib.md5(part).digest() for part in parts))
    return f"{whole.hexdigest()}-{len(parts)}"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "weights"
    path.write_bytes(bytes(range(256)) * (4096 * 9 + 7))  # nine MiB and a little
    return path


def test_an_object_put_in_one_piece_has_its_md5(file: Path) -> None:
    e_tag = hashlib.md5(file.read_bytes()).hexdigest()
    assert check_file(file, e_tag) is Match.SAME
    file.write_bytes(file.read_bytes()[:-1] + b"\0")
    assert check_file(file, e_tag) is Match.OTHER


@pytest.mark.parametrize("part_mib", [1, 5, 8])
def test_the_size_of_parts_is_found(file: Path, part_mib: int) -> None:
    e_tag = e_tag_of_parts(file.read_bytes(), part_mib * MIB)
    assert check_file(file, e_tag) is Match.SAME
    file.write_bytes(file.read_bytes()[:-1] + b"\0")
    assert check_file(file, e_tag) is Match.UNKNOWN


def test_a_file_of_a_hub_s_cache_has_the_bytes_of_its_name(tmp_path: Path) -> None:
    content = b"weights" * 1000
    for name in (
        hashlib.sha256(content).hexdigest(),
        hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest(),
        hashlib.sha1(content).hexdigest(),
    ):
        blob, link = tmp_path / name, tmp_path / "model.safetensors"
        blob.write_bytes(content)
        link.unlink(missing_ok=True)
        link.symlink_to(blob)
        assert check_blob(link) is Match.SAME
        blob.write_bytes(bytes(len(content)))
        assert check_blob(link) is Match.OTHER
    plain = tmp_path / "config.json"
    plain.write_bytes(content)
    assert check_blob(plain) is Match.UNKNOWN


def test_what_is_no_checksum_is_unknown(file: Path) -> None:
    assert check_file(file, "0x8D4BCC2E4835CD0") is Match.UNKNOWN


def test_parts_of_the_usual_size_come_first() -> None:
    assert next(part_sizes(5_000_000_000, 597)) == 8 * MIB
    assert list(part_sizes(9 * MIB + 1, 2)) == [n * MIB for n in (8, 5, 6, 7, 9)]
