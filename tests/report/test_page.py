"""The page: self-contained, escaped, and honest about what is not known."""

from __future__ import annotations

import re
from html.parser import HTMLParser

import msgspec
import pytest

from shardline.report.figures import (
    Agreement,
    Answer,
    DeadExample,
    DeadFigures,
    RejectedExample,
    RejectedFigures,
    Report,
    Sample,
    Trouble,
)
from shardline.report.page import render_report
from shardline.rows import Law
from tests.report.report_factory import make_report

EVIL = "<script>alert(1)</script><img src=x onerror=alert(1)>\"'><svg onload=alert(1)>"
ALLOWED = {"html", "head", "meta", "title", "style", "body", "main", "header", "footer", "section"} | {
    "div", "span", "p", "a", "b", "i", "h1", "h2", "h3", "code", "pre", "dl", "dt", "dd", "ul", "li",
    "table", "thead", "tbody", "tr", "th", "td", "figure", "figcaption", "details", "summary",
    "svg", "g", "path", "defs", "rect", "text", "use", "clippath", "tspan",
}  # fmt: skip


class Elements(HTMLParser):
    """Collects every element and attribute, as a browser would see them."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.attributes: list[tuple[str, str | None]] = []
        self.text = ""
        self.open: list[str] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.attributes += attrs
        if tag != "meta":
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data


def evil_report() -> Report:
    """Somebody's script in every place that comes from a document, a file name or a job file."""
    base = make_report()
    assert base.work is not None
    return make_report(
        headline=EVIL,
        job=msgspec.structs.replace(base.job, owner=EVIL, model=EVIL, job_file={"name": EVIL}),
        input=msgspec.structs.replace(base.input, skipped_examples=[EVIL]),
        work=msgspec.structs.replace(base.work, troubles=[Trouble(EVIL, EVIL, 1, EVIL, EVIL)]),
        dead=[DeadFigures("x", EVIL, True, 1, [DeadExample(EVIL, EVIL, 1, "c", EVIL)])],
        rejected=[RejectedFigures("x", EVIL, 1, [RejectedExample(EVIL, 1, EVIL)])],
        answers=[Answer(EVIL, 1)],
        agreement=Agreement(EVIL, 1, 1, [EVIL], [EVIL], [[1]]),
        samples=[Sample(EVIL, EVIL, 1, EVIL, EVIL, EVIL, 1, 1, EVIL)],
    )


def test_nothing_that_comes_from_a_document_becomes_an_element_or_an_attribute() -> None:
    page = Elements(render_report(evil_report()))
    assert page.tags <= ALLOWED
    assert not [name for name, _ in page.attributes if name.startswith("on")]
    assert page.text.count("<script>alert(1)</script>") > 10
    assert page.open == []


@pytest.mark.parametrize("report", [make_report(), evil_report()])
def test_the_page_asks_nobody_for_anything(report: Report) -> None:
    page = Elements(render_report(report))
    links = {
        value or "" for name, value in page.attributes if name in ("href", "src", "xlink:href")
    }
    assert not [link for link in links if re.match(r"\s*(\w+:|//)", link)]
    style = render_report(report).split("<style>")[1].split("</style>")[0]
    assert "url(" not in style
    assert "@import" not in style
    assert (
        "content",
        "default-src 'none'; style-src 'unsafe-inline'; img-src data:",
    ) in page.attributes


def test_equal_figures_give_equal_bytes() -> None:
    assert render_report(make_report()) == render_report(make_report())


def test_ids_are_unique_and_every_reference_finds_one() -> None:
    page = render_report(make_report())
    ids = re.findall(r'\bid="([^"]+)"', page)
    assert len(ids) == len(set(ids))
    assert set(re.findall(r"url\(#([^)]+)\)", page)) <= set(ids)


def test_the_law_is_shown_with_its_numbers() -> None:
    text = Elements(render_report(make_report())).text
    for number in ("10,000", "9,564", "36", "400", "9,012", "540", "12"):
        assert number in text
    assert "the law holds" in text


def test_a_broken_law_is_said_and_not_drawn() -> None:
    law = Law(10, 9, 0, 0, 9, 0, 0)
    text = Elements(render_report(make_report(law=law, law_differences=law.differences()))).text
    assert "the law is broken" in text
    assert "difference +1" in text


def test_a_job_that_was_only_planned_has_a_page_without_made_up_zeros() -> None:
    report = make_report(
        state="planned", law=None, shards=None, work=None, tokens=None, dead=[], dead_total=None,
        rejected=[], answers=[], agreement=None, samples=[], published=None, validation=None,
    )  # fmt: skip
    page = Elements(render_report(report))
    assert "planned" in page.text
    assert "Where every row went" not in page.text
    assert "Where the time went" not in page.text
    assert "Answers" not in page.text


def test_long_texts_are_cut_and_say_so() -> None:
    sample = msgspec.structs.replace(make_report().samples[0], text="x" * 5_000)
    assert "… (1,000 more characters)" in render_report(make_report(samples=[sample]))


def test_odd_names_of_reasons_do_not_break_the_page() -> None:
    base = make_report()
    report = make_report(input=msgspec.structs.replace(base.input, skipped={"unheard_of": 1}))
    assert "unheard_of" in render_report(report)
