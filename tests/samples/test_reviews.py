"""The demo's corpus keeps every raw sentence as it is."""

import json
from pathlib import Path

import pytest

from samples import reviews


def rows(raw: bytes) -> list[dict[str, object]]:
    return [json.loads(line) for line in reviews.corpus_lines("movie", raw)]


def test_a_raw_line_becomes_a_row():
    assert rows(b"7\t-0.6\tEffective but too tepid biopic\r\n") == [
        {
            "id": "movie-7",
            "text": "Effective but too tepid biopic",
            "rating": -0.6,
            "kind": "movie",
            "label": "negative",
        }
    ]


def test_the_label_is_the_side_that_people_took_on_the_whole():
    assert [reviews.label_of(rating) for rating in (0.1, -0.1, 0.0)] == [
        "positive",
        "negative",
        None,
    ]


def test_text_is_kept_byte_for_byte():
    text = " 9\u00bd Weeks,\u00a0''clich\u00e9''\u2028 and\x85 \x1c so on. "
    assert rows(f"1\t1.5\t{text}\r\n2\t-1\tlast line without an end".encode())[0]["text"] == text


def test_sentences_that_occur_twice_stay_two_rows():
    assert [row["id"] for row in rows(b"1\t1\t!\r\n2\t-1\t!")] == ["movie-1", "movie-2"]


def test_bytes_that_are_no_utf8_are_refused_rather_than_replaced():
    with pytest.raises(UnicodeDecodeError):
        rows(b"1\t1\tcaf\xe9\r\n")


@pytest.mark.slow
def test_the_files_are_made_whole_with_unique_ids_and_a_damaged_one_is_made_again(tmp_path: Path):
    movie, product = reviews.make_reviews(tmp_path / "reviews")
    lines = movie.read_bytes().splitlines() + product.read_bytes().splitlines()
    assert len({json.loads(line)["id"] for line in lines}) == 10_605 + 3_708

    movie.write_bytes(movie.read_bytes()[:-1])
    assert not reviews.is_made(movie.parent)
    reviews.make_reviews(movie.parent)
    assert reviews.is_made(movie.parent)
