"""The campaign's own count must see every way in which a document can be lost or doubled."""

from __future__ import annotations

import json
from typing import Any

from benchmarks.faults_count import Count, compare_answers, count_ends, count_law, uncommitted

TEXTS = ["alpha", "beta", "gamma"]


def request(text: str) -> bytes:
    body = {"messages": [{"role": "user", "content": text}]}
    return json.dumps({"custom_id": f"id-{text}", "body": body}).encode()


def answer(text: str, **fields: Any) -> bytes:
    body = {"choices": [{"message": {"content": text.upper()}}], "usage": {"prompt_tokens": 3}}
    line = {"custom_id": f"id-{text}", "response": {"body": body}, "error": None}
    return json.dumps({**line, **fields}).encode()


def count(results: list[bytes] | None, requests: list[bytes] | None = None) -> Count:
    shard = b"\n".join(requests or [request(text) for text in TEXTS])
    return count_law(TEXTS, {"s": shard}, {"s": None if results is None else b"\n".join(results)})


def test_a_shard_in_which_every_document_has_its_answer_is_in_order() -> None:
    found = count([answer(text) for text in TEXTS])
    assert (found.rows, found.lost, found.doubled, found.dead, found.other) == (3, [], [], [], [])
    assert found.answers["id-beta"] == ("BETA", 3)


def test_a_line_that_is_missing_is_a_lost_document() -> None:
    assert count([answer("alpha"), answer("gamma")]).lost == ["s: id-beta"]


def test_a_shard_without_results_has_lost_all_its_documents() -> None:
    assert len(count(None).lost) == 3


def test_a_line_that_stands_there_twice_is_a_doubled_document() -> None:
    lines = [answer(text) for text in ("alpha", "beta", "beta", "gamma")]
    assert count(lines).doubled == ["s: id-beta"]


def test_a_document_without_a_request_is_lost_and_one_with_two_is_doubled() -> None:
    texts = ["alpha", "beta", "beta"]
    found = count([answer(text) for text in texts], [request(text) for text in texts])
    assert found.lost == ["no request: gamma"]
    assert found.doubled == ["asked again: beta"]


def test_lines_out_of_order_and_lines_of_nobody_are_seen() -> None:
    assert count([answer(t) for t in ("beta", "alpha", "gamma")]).other == ["s: lines out of order"]
    assert count([answer(t) for t in (*TEXTS, "delta")]).other == ["s: id-delta"]


def test_a_dead_letter_is_none_of_the_answers() -> None:
    dead = answer("beta", response=None, error={"code": "engine_killer", "message": "alone"})
    found = count([answer("alpha"), dead, answer("gamma")])
    assert found.dead == ["s: id-beta: engine_killer: alone"]
    assert "id-beta" not in found.answers


def test_a_line_that_is_neither_answer_nor_error_is_a_lost_document() -> None:
    found = count([answer("alpha"), answer("beta", response=None), answer("gamma")])
    assert len(found.lost) == 1


def test_another_row_s_answer_is_told_from_one_that_only_differs() -> None:
    calm = {"a": ("x", 3), "b": ("y", 4), "c": ("z", 5)}
    found = {"a": ("x", 3), "b": ("y!", 4), "c": ("x", 3)}
    assert compare_answers(found, calm) == (["c"], ["b", "c"])


def test_rows_that_were_fed_and_are_in_no_segment_were_in_flight() -> None:
    ended = count_ends([answer("alpha") + b"\n" + answer("beta"), answer("beta")])
    assert ended["id-beta"] == 2
    ids = [f"id-{text}" for text in TEXTS]
    assert uncommitted({"fed": [[0, 0], [2, 2]]}, ids, ended) == ["id-gamma"]
    assert uncommitted(None, ids, ended) == []
