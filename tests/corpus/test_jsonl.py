"""JSON Lines: the fast look is never wrong, the slow look has the reasons."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shardline.corpus.formats.jsonl import MAX_DEPTH, make_first_look, make_second_look, read_jsonl
from shardline.corpus.raw import Columns, Digits, RawRow, Rejection
from shardline.template import Column


def columns(
    id_: str | None = "id", texts: tuple[str, ...] = ("text",), carry: tuple[str, ...] = ()
) -> Columns:
    paths = tuple(Column(tuple(name.split("."))) for name in texts)
    return Columns(id_, paths, carry, 1 << 20)


ALL = columns(texts=("text", "meta.title"), carry=("tag", "meta"))

json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(codec="utf-8")),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner),
    max_leaves=6,
)
lines = st.builds(
    lambda value, ascii_: json.dumps(value, ensure_ascii=ascii_).encode(),
    st.dictionaries(st.sampled_from(["id", "text", "meta", "tag", "x", "title"]), json_values),
    st.booleans(),
)


@st.composite
def damaged_lines(draw: st.DrawFn) -> bytes:
    line = bytearray(draw(lines))
    for _ in range(draw(st.integers(1, 3))):
        at = draw(st.integers(0, len(line)))
        line[at : at + draw(st.integers(0, 2))] = draw(
            st.binary(max_size=2)
            | st.sampled_from(
                [b'"id":1,', b'"te\\u0078t":"b",', b"\\ud800", b"NaN", b"[", b"{", b"1e400", b"01"]
            )
        )
    return bytes(line)


@given(lines | damaged_lines())
@settings(max_examples=150)
def test_where_the_fast_look_answers_the_slow_look_says_the_same(line: bytes) -> None:
    fast = make_first_look(ALL)(line)
    if fast is not None:
        assert fast == make_second_look(ALL)(line)


@given(st.binary(max_size=40) | damaged_lines())
@settings(max_examples=150)
def test_a_line_is_a_row_or_rejected_whatever_its_bytes(line: bytes) -> None:
    found = make_second_look(ALL)(line)
    assert isinstance(found, RawRow | Rejection)


def seen(line: bytes, wanted: Columns = ALL) -> Any:
    """What reading the line gives: the row's values, or the reason."""
    rows = list(read_jsonl([line + b"\n"], wanted))
    assert len(rows) == 1
    row = rows[0][1]
    return row.reason if isinstance(row, Rejection) else row


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (b'{"id":"a","text":"\xff"}', "invalid_utf8"),
        (b'{"id":"a","text":"b","unread":"\xff"}', "invalid_utf8"),
        (b'{"id":"a","text":"b","unread":"\xed\xa0\xbd"}', "invalid_utf8"),
        (b'{"m":' + b"[" * 2_000 + b"]" * 2_000 + b"}", "too_deep"),
        (b"[" * 2_000, "too_deep"),
        (b'{"id":"a","text":"b"} {}', "bad_json"),
        (b'{"id":"a","text":"b","n":NaN}', "bad_json"),
        (b'{"id":"a","text":"b",}', "bad_json"),
        (b'{"id":"a","text":"a\tb"}', "bad_json"),
        (b"\xef\xbb\xbf\xef\xbb\xbf{}", "bad_json"),
        (b"null", "not_an_object"),
        (b'"\\ud800"', "not_an_object"),
        (b'{"id":"a","text":"b","unread":"\\ud83d"}', "lone_surrogate"),
        (b'{"id":"a","text":"b","unread":"\\ud83d \\ude00"}', "lone_surrogate"),
        (b'{"id":"a","text":"b","unread":"\\ud83d\\n"}', "lone_surrogate"),
        (b'{"id":"a","text":"b","te\\u0078t":"c"}', "duplicate_key"),
        (b'{"id":"a","text":"b","tag":1,"tag":1}', "duplicate_key"),
        (b'{"id":"a","text":"b","meta":{},"meta":{}}', "duplicate_key"),
    ],
)
def test_a_bad_line_is_rejected_with_its_first_reason(line: bytes, reason: str) -> None:
    assert seen(line) == reason


def test_brackets_within_strings_do_not_nest() -> None:
    text = "[" * (MAX_DEPTH + 1)
    assert seen(json.dumps({"id": "a", "text": text}).encode()).texts == [text, None]


def test_a_pair_of_surrogates_is_one_character_and_an_escaped_backslash_no_escape() -> None:
    assert seen(b'{"id":"a","text":"\\ud83d\\ude00 \\\\ud83d"}').texts[0] == "\U0001f600 \\ud83d"


def test_a_repeated_key_that_is_not_read_or_deeper_costs_nothing() -> None:
    assert seen(b'{"id":"a","text":"b","x":1,"x":2,"y":{"id":1,"id":2}}').id == "a"


def test_numbers_are_read_to_their_last_digit() -> None:
    many = "9" * 5_000
    row = seen(f'{{"id":{many},"text":{10**40},"unread":{many}}}'.encode())
    assert row.id == many
    assert isinstance(row.id, Digits)
    assert row.texts[0] == 10**40


def test_a_dotted_column_reaches_into_objects_and_finds_nothing_elsewhere() -> None:
    assert seen(b'{"meta":{"title":"t"}}').texts == [None, "t"]
    assert seen(b'{"meta":["title"]}').texts == [None, None]
    assert seen(b'{"meta.title":"flat"}').texts == [None, None]


def test_row_numbers_are_physical_lines_wherever_chunks_end() -> None:
    content = b'\n{"text":"a"}\r\n \t\r\n{"text":"b"}\n\n{"text":"c"}'
    for size in range(1, len(content) + 1):
        chunks = [content[n : n + size] for n in range(0, len(content), size)]
        rows = [
            (n, row.texts) for n, row in read_jsonl(chunks, columns()) if isinstance(row, RawRow)
        ]
        assert rows == [(2, ["a"]), (4, ["b"]), (6, ["c"])]


def test_only_a_line_feed_ends_a_line_and_only_space_tab_and_return_are_blank() -> None:
    rows = list(read_jsonl([b"{}\x0b{}\n", b"\x0c\n", "\u2028\n".encode()], columns()))
    assert [number for number, _ in rows] == [1, 2, 3]
    assert all(isinstance(row, Rejection) for _, row in rows)


def test_a_line_over_the_limit_is_rejected_and_its_neighbours_live() -> None:
    small = Columns("id", (Column(("text",)),), (), 30)
    chunks = [b'{"text":"a"}\n{"text":"', b"x" * 40, b'"}\n', b'{"text":"b"}\n']
    rows = list(read_jsonl(chunks, small))
    assert [n for n, _ in rows] == [1, 2, 3]
    assert isinstance(rows[1][1], Rejection)
    assert rows[1][1].reason == "text_too_long"
