"""Escaping by construction."""

from __future__ import annotations

from shardline.report.html import Html, join, raw, tag


def test_a_plain_string_is_escaped_wherever_it_is_put() -> None:
    evil = "<script>alert('x')</script>"
    assert "<script" not in tag("p", evil)
    assert "<script" not in tag("p", [evil, [evil]])
    assert "<script" not in join(evil)
    assert '"><script' not in tag("p", title=f'"><{evil}')


def test_markup_of_our_own_passes_and_stays_markup() -> None:
    inner = tag("b", "a & b")
    assert tag("p", inner, raw("<hr>")) == "<p><b>a &amp; b</b><hr></p>"
    assert isinstance(inner, Html)


def test_html_that_was_joined_with_a_string_is_a_plain_string_again() -> None:
    assert "&lt;b&gt;" in tag("p", tag("b", "x") + "<i>")


def test_attributes_that_are_none_are_left_out() -> None:
    assert tag("p", class_=None, id="x") == '<p id="x"></p>'
