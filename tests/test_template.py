"""Templates: columns are replaced literally and once; everything else is text."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardline.template import parse_template


def names(text: str) -> list[str]:
    return [column.name for column in parse_template(text).columns]


def test_columns_are_replaced_wherever_they_stand() -> None:
    template = parse_template("{{a}} and {{ b.c }}\n{{ a }}!")
    assert template.render({"a": "1", "b.c": "2"}) == "1 and 2\n1!"
    assert names("{{a}} and {{ b.c }}\n{{ a }}!") == ["a", "b.c", "a"]


def test_a_value_is_never_read_as_a_template() -> None:
    assert parse_template("{{ a }}{{ b }}").render({"a": "{{ b }}", "b": "{{ a }}"}) == (
        "{{ b }}{{ a }}"
    )


@given(st.text().filter(lambda text: "{{" not in text))
def test_text_without_two_braces_is_itself(text: str) -> None:
    assert parse_template(text).render({}) == text


@given(st.text("{}'\" a"))
def test_any_text_can_be_written(text: str) -> None:
    written = text.replace("{{", "{{ '{{' }}")
    assert parse_template(written).render({}) == text


@pytest.mark.parametrize("braces", ["{{ '{{' }}", '{{"{{"}}', "{{'{{'}}"])
def test_two_braces_are_written_in_quotes(braces: str) -> None:
    assert parse_template(f"a {braces} b }}}} {{ c").render({}) == "a {{ b }} { c"


@pytest.mark.parametrize("name", ["a", "a-b", "a_b", "$a", "first name", "ünï", "a.b.c", "1"])
def test_a_column_name_may_have_letters_digits_dashes_and_inner_spaces(name: str) -> None:
    assert names("{{ " + name + " }}") == [name]


@pytest.mark.parametrize(
    "text", ["{{ }}", "{{ a | upper }}", "{{ a() }}", "{{ a[0] }}", "{{ .a }}", "{{ a..b }}"]
)
def test_what_is_no_column_is_an_error_that_says_how(text: str) -> None:
    with pytest.raises(ValueError, match="expected a column name or a dotted path"):
        parse_template(text)


@pytest.mark.parametrize("text", ["{{ a", "{{ a }", "x {{"])
def test_a_placeholder_that_is_never_closed_is_an_error(text: str) -> None:
    with pytest.raises(ValueError, match="never closed"):
        parse_template(text)
