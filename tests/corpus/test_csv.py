"""CSV by RFC 4180: what a strict writer wrote comes back; what breaks the rules is named."""

from __future__ import annotations

import csv
import io

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shardline.corpus.formats.csv import read_csv
from shardline.corpus.raw import Columns, RawRow, Rejection, UnreadableFile
from shardline.template import Column

COLUMNS = Columns("id", (Column(("text",)),), ("tag",), 1 << 20)
Outcome = tuple[int, str] | tuple[int, str, str, str]


def read(content: bytes, chunk: int = 1 << 20, columns: Columns = COLUMNS) -> list[Outcome]:
    chunks = [content[n : n + chunk] for n in range(0, len(content), chunk)]
    found: list[Outcome] = []
    for number, row in read_csv(chunks, columns):
        if isinstance(row, Rejection):
            found.append((number, str(row.reason)))
        else:
            assert isinstance(row, RawRow)
            found.append((number, row.id, row.texts[0], row.carry[0]))
    return found


cells = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=6) | st.text(
    '",\n\r x', max_size=6
)
records = st.lists(st.tuples(cells.map(lambda c: c + "."), cells, cells), max_size=5)


@given(records, st.sampled_from(["\n", "\r\n"]), st.booleans(), st.integers(1, 9))
@settings(max_examples=100)
def test_what_a_strict_writer_wrote_is_read_back_wherever_chunks_end(
    rows: list[tuple[str, str, str]], end: str, quote_all: bool, chunk: int
) -> None:
    out = io.StringIO(newline="")
    # Python before 3.13 does not quote a lone carriage return: that is no RFC 4180
    is_minimal = not quote_all and "\r" not in "".join(map("".join, rows))
    quoting = csv.QUOTE_MINIMAL if is_minimal else csv.QUOTE_ALL
    writer = csv.writer(out, lineterminator=end, quoting=quoting)
    writer.writerows([("id", "text", "tag"), *rows])
    found = read(out.getvalue().encode(), chunk)
    assert [record[1:] for record in found] == rows
    lines = [1 + sum("".join(row).count("\n") + 1 for row in rows[:n]) for n in range(len(rows))]
    assert [record[0] - 1 for record in found] == lines


@given(st.binary(max_size=60) | st.text('",\n\rab', max_size=30).map(str.encode))
@settings(max_examples=100)
def test_any_bytes_behind_a_header_become_rows_the_same_wherever_chunks_end(tail: bytes) -> None:
    content = b"id,text,tag\n" + tail
    whole = read(content)
    assert whole == read(content, 1) == read(content, 7)
    assert len({record[0] for record in whole}) == len(whole)


@pytest.mark.parametrize(
    ("tail", "expected"),
    [
        (b'a,b"c,d\ne,f,g\n', [(2, "bad_csv"), (3, "e", "f", "g")]),
        (b'a,"b"c,d\ne,f,g\n', [(2, "bad_csv"), (3, "e", "f", "g")]),
        (b'a, "b",d\ne,f,g\n', [(2, "bad_csv"), (3, "e", "f", "g")]),
        (b"a,b\rc,d\ne,f,g\n", [(2, "bad_csv"), (3, "e", "f", "g")]),
        (b"a,b\ne,f,g,h\ne,f,g", [(2, "column_count"), (3, "column_count"), (4, "e", "f", "g")]),
        (b'a,"b\n\xff",d\ne,f,g\n', [(2, "invalid_utf8"), (4, "e", "f", "g")]),
        (b'a,"b\nc"d,e\ne,f,g\n', [(2, "bad_csv"), (4, "e", "f", "g")]),
        (b'\n \t\r\na,"\n\n",\n', [(4, "a", "\n\n", "")]),
        (b'a,"""",""\r', [(2, "a", '"', "")]),
    ],
)
def test_a_bad_record_is_rejected_at_its_line_and_its_neighbours_live(
    tail: bytes, expected: list[Outcome]
) -> None:
    assert read(b"id,text,tag\n" + tail) == expected


def test_every_line_that_an_unclosed_quote_swallows_is_a_rejected_row() -> None:
    found = read(b'id,text,tag\na,b,c\nd,"never closed,e\nf,g,h\ni,j,k\n')
    assert found == [(2, "a", "b", "c"), (3, "bad_csv"), (4, "bad_csv"), (5, "bad_csv")]


def test_a_record_over_the_limit_is_rejected_and_its_neighbours_live() -> None:
    small = Columns("id", (Column(("text",)),), ("tag",), 40)
    long = b'b,"' + b"x" * 20 + b"\n" + b"y" * 20 + b'",t\n'
    found = read(b"id,text,tag\na,b,c\n" + long + b"d,e,f\n", columns=small)
    assert found == [(2, "a", "b", "c"), (3, "text_too_long"), (5, "d", "e", "f")]


@pytest.mark.parametrize(
    ("header", "reason"),
    [
        (b"id,text\n", "missing_column"),
        (b"id;text;tag\n", "missing_column"),
        (b"", "missing_column"),
        (b"\nid,text,tag\n", "missing_column"),
        (b'id,"text,tag\n', "missing_column"),
        (b"id,text,tag,tag\n", "duplicate_column"),
    ],
)
def test_a_header_without_the_columns_is_an_error_of_the_file(header: bytes, reason: str) -> None:
    with pytest.raises(UnreadableFile) as caught:
        read(header)
    assert caught.value.reason == reason


def test_a_column_that_is_not_read_may_stand_twice() -> None:
    assert read(b"x,id,x,text,tag\n1,a,2,b,c\n") == [(2, "a", "b", "c")]
