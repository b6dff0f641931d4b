"""Agreement: the share of equal pairs and its table."""

from __future__ import annotations

from shardline.report.dataset import OTHER, fold_agreement
from shardline.report.samples import label_text, spaced


def test_the_table_adds_up_and_its_diagonal_is_what_is_equal() -> None:
    pairs = {("a", "a"): 5, ("a", "b"): 2, ("b", "b"): 3, ("b", OTHER): 1}
    found = fold_agreement("label", pairs)
    assert (found.rows, found.equal) == (11, 8)
    assert (found.labels, found.outputs) == (["a", "b"], ["a", "b", OTHER])
    assert found.table == [[5, 2, 0], [0, 3, 1]]
    assert found.share == 8 / 11


def test_rare_labels_are_shown_together_and_still_counted_as_equal() -> None:
    pairs = {(f"l{i:02d}", f"l{i:02d}"): 20 - i for i in range(20)}
    found = fold_agreement("label", pairs)
    assert len(found.labels) == 13
    assert found.labels[-1] == OTHER
    assert sum(map(sum, found.table)) == found.rows == found.equal


def test_no_labels_give_no_share() -> None:
    found = fold_agreement("label", {})
    assert (found.rows, found.share, found.table) == (0, 0.0, [])


def test_labels_of_other_types_are_said_as_an_output_would_say_them() -> None:
    assert [label_text(v) for v in (True, 3, "x")] == ["true", "3", "x"]


def test_things_are_picked_evenly_and_always_the_same() -> None:
    assert spaced(range(10), 2) == [2, 7]
    assert spaced(range(3), 10) == [0, 1, 2]
    assert spaced([], 4) == []
