"""Packed files: a cut file never looks like a shorter one, and a damaged one never like a whole."""

from __future__ import annotations

import gzip
import io

import pytest
from backports import zstd
from hypothesis import given, settings
from hypothesis import strategies as st

from shardline.corpus.formats.compression import text_chunks
from shardline.corpus.raw import UnreadableFile

TEXT = b"".join(b'{"text": "line number %d"}\n' % n for n in range(50))
FIRST, SECOND = TEXT[:333], TEXT[333:]
SKIPPABLE = b"\x50\x2a\x4d\x18\x04\x00\x00\x00skip"
CHECKED = {zstd.CompressionParameter.checksum_flag: 1}
GZ = [gzip.compress(FIRST, mtime=0), gzip.compress(b"", mtime=0), gzip.compress(SECOND, mtime=0)]
ZST = [zstd.compress(FIRST, options=CHECKED), SKIPPABLE, zstd.compress(SECOND, options=CHECKED)]
PACKED = {"gz": GZ, "zst": ZST}


def unpack(content: bytes, packing: str) -> bytes:
    return b"".join(text_chunks(io.BytesIO(content), packing))


def reason(content: bytes, packing: str) -> str:
    with pytest.raises(UnreadableFile) as caught:
        unpack(content, packing)
    return str(caught.value.reason)


@pytest.mark.parametrize("packing", ["gz", "zst"])
def test_several_members_or_frames_are_one_file(packing: str) -> None:
    assert unpack(b"".join(PACKED[packing]), packing) == TEXT


@pytest.mark.parametrize("packing", ["gz", "zst"])
def test_a_file_cut_at_any_byte_is_truncated_unless_it_was_cut_between_members(
    packing: str,
) -> None:
    parts = PACKED[packing]
    whole = b"".join(parts)
    borders = {sum(map(len, parts[:n])) for n in range(1, len(parts))}
    for end in range(len(whole)):
        if end not in borders:
            assert reason(whole[:end], packing) == "truncated", end


@given(st.sampled_from(["gz", "zst"]), st.data())
@settings(max_examples=300)
def test_a_flipped_bit_changes_no_text_in_silence(packing: str, data: st.DataObject) -> None:
    whole = bytearray(b"".join(PACKED[packing]))
    at = data.draw(st.integers(0, len(whole) - 1))
    whole[at] ^= 1 << data.draw(st.integers(0, 7))
    try:
        assert unpack(bytes(whole), packing) == TEXT
    except UnreadableFile as error:
        assert error.reason in ("truncated", "corrupt", "wrong_format")  # noqa: PT017


@pytest.mark.parametrize("packing", ["gz", "zst"])
@pytest.mark.parametrize("tail", [b"\0\0\0\0\0\0\0\0", b"junk behind the end"])
def test_what_follows_the_last_member_must_be_one(packing: str, tail: bytes) -> None:
    assert reason(PACKED[packing][0] + tail, packing) == "corrupt"


@pytest.mark.parametrize(
    ("content", "packing"),
    [
        (GZ[0], ""),
        (GZ[0], "zst"),
        (ZST[0], ""),
        (SKIPPABLE + ZST[0], ""),
        (ZST[0], "gz"),
        (b"PAR1....", ""),
        (TEXT, "gz"),
        (TEXT, "zst"),
        (gzip.compress(GZ[0]), "gz"),
        (gzip.compress(ZST[0]), "gz"),
        (b"{", "gz"),
    ],
)
def test_content_that_differs_from_the_name_is_the_wrong_format(
    content: bytes, packing: str
) -> None:
    assert reason(content, packing) == "wrong_format"


@pytest.mark.parametrize("mark", [b"\xff\xfe", b"\xfe\xff", b"\xff\xfe\0\0", b"\0\0\xfe\xff"])
def test_a_wide_encoding_is_refused_packed_or_not(mark: bytes) -> None:
    assert reason(mark + b"a\0", "") == "not_utf8"
    assert reason(gzip.compress(mark + b"a\0"), "gz") == "not_utf8"


def test_a_mark_of_utf8_is_skipped_once() -> None:
    mark = b"\xef\xbb\xbf"
    assert unpack(mark + mark + TEXT, "") == mark + TEXT
    assert unpack(gzip.compress(mark + TEXT), "gz") == TEXT


def test_a_bomb_is_unpacked_in_small_steps() -> None:
    bomb = gzip.compress(bytes(64 << 20))
    assert max(map(len, text_chunks(io.BytesIO(bomb), "gz"))) <= 1 << 20
    bomb = zstd.compress(bytes(64 << 20))
    assert max(map(len, text_chunks(io.BytesIO(bomb), "zst"))) <= 1 << 20


def test_an_empty_plain_file_holds_nothing_and_an_empty_packed_one_is_truncated() -> None:
    assert unpack(b"", "") == b""
    assert reason(b"", "gz") == reason(b"", "zst") == "truncated"
