from shardline.worker.record import as_ranges


def test_ranges_are_closed_and_hold_exactly_the_rows() -> None:
    assert as_ranges([5, 3, 4, 9, 1, 9]) == [(1, 1), (3, 5), (9, 9)]
    assert as_ranges([]) == []
