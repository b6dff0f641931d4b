import pytest

from shardline.early import EarlyEnds
from shardline.errors import WrongInput
from shardline.rows import ErrorBody, Response, Result

GOOD = Result("1", "a", response=Response(200, "1", {}))


def dead(code: str) -> Result:
    return Result("1", "a", error=ErrorBody(code, "the message"))


@pytest.mark.protocol(12)
def test_first_rows_that_all_end_for_a_reason_in_the_job_stop_it_and_say_which() -> None:
    early = EarlyEnds(3)
    early.add(dead("bad_schema"))
    early.add(dead("bad_schema"))
    assert early.is_open
    with pytest.raises(WrongInput, match="first 3 requests all ended as bad_schema: the message"):
        early.add(dead("bad_schema"))


@pytest.mark.protocol(12)
@pytest.mark.parametrize("other", [GOOD, dead("bad_parameter"), dead("too_long")])
def test_one_row_that_ends_otherwise_lets_the_job_go_on(other: Result) -> None:
    early = EarlyEnds(3)
    early.add(dead("bad_schema"))
    early.add(other)
    assert not early.is_open
    for _ in range(10):
        early.add(dead("bad_schema"))


@pytest.mark.protocol(12)
def test_reasons_of_the_documents_never_stop_a_job() -> None:
    early = EarlyEnds(2)
    for _ in range(10):
        early.add(dead("too_long"))


def test_a_resumed_shard_is_not_judged_again() -> None:
    early = EarlyEnds(0)
    assert not early.is_open
    early.add(dead("bad_schema"))
