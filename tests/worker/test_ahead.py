"""Work-ahead: idle slots take rows of shards that nobody has started; none is lost or doubled."""

import json
import random
from dataclasses import dataclass
from pathlib import Path

import pytest

from shardline.attempts import read_attempts
from shardline.reasons import ExitCode
from shardline.segments import SegmentName
from shardline.shard_file import Row, in_far_order
from tests.factories import make_job, make_store
from tests.worker.in_process import attempt
from tests.worker.prepared import (
    QUICK,
    Prepared,
    Worker,
    make_body,
    make_plan,
    put_bodies,
    read_results,
)

pytestmark = pytest.mark.timeout(120)

ENGINE = {
    "model": "stub",
    "engine": "stub",
    "engine_args": {"latency_s": 0.01, "max_num_seqs": 4},
}
QUICK_ENV = {**QUICK, "SHARDLINE_WORK_AHEAD_S": "60"}


@dataclass(frozen=True)
class Shards:
    """A job of several shards; `ids` of each in the order of its file."""

    job: Prepared
    ids: dict[str, list[str]]

    def results(self, shard: str) -> list[str]:
        path = self.job.plan.layout.results(shard)
        return [line.custom_id for line in read_results(self.job.store, path)]

    def segments(self, shard: str) -> dict[str, list[str]]:
        """Attempt → the custom_ids that it committed into this shard."""
        found: dict[str, list[str]] = {}
        for segment in self.job.store.list(self.job.plan.layout.segments(shard)):
            name = SegmentName.parse(segment.path).attempt
            lines = read_results(self.job.store, segment.path)
            found.setdefault(name, []).extend(line.custom_id for line in lines)
        return found

    def start(self, shard: str) -> Worker:
        return self.job.start(shard=shard, env=QUICK_ENV)


@dataclass(frozen=True)
class FakeShard:
    lengths: dict[int, int]

    def expected(self, row: int) -> int:
        return self.lengths[row]


def prepare_shards(folder: Path, texts: list[list[str]]) -> Shards:
    job, store = make_job(folder, local=ENGINE), make_store(folder)
    plan, ids = make_plan(job), {}
    for number, rows in enumerate(texts):
        shard = f"shard-00000-{number:03d}"
        ids[shard] = put_bodies(store, plan, shard, [make_body(job, text) for text in rows])
    return Shards(Prepared(store, plan, []), ids)


def rows(shard: int, n: int = 12, first: str = "[stub:slow]") -> list[str]:
    """The first row is the longest and keeps the engine up while other slots are idle."""
    return [
        f"{first} shard {shard} row 00" + " x" * 9,
        *(f"shard {shard} row {k:03d}" for k in range(1, n)),
    ]


def test_idle_slots_do_rows_of_a_shard_that_nobody_has_started(tmp_path: Path) -> None:
    shards = prepare_shards(tmp_path, [rows(0), rows(1)])
    first, second = shards.ids
    assert attempt(shards.job, tmp_path, shard=first, work_ahead_s=60) is ExitCode.DONE
    (record,) = read_attempts(shards.job.store, shards.job.plan.layout, first)
    ((name, ahead),) = shards.segments(second).items()
    assert (record.ahead, record.attempt, record.counts.ahead) == ([second], name, len(ahead))
    assert record.counts.results == 12
    assert shards.results(first) == shards.ids[first]
    assert set(ahead) <= set(shards.ids[second])

    assert attempt(shards.job, tmp_path, shard=second) is ExitCode.DONE
    (record,) = read_attempts(shards.job.store, shards.job.plan.layout, second)
    assert (record.resumed_rows, record.counts.results) == (len(ahead), 12 - len(ahead))
    assert shards.results(second) == shards.ids[second]


def test_it_begins_at_the_far_end(tmp_path: Path) -> None:
    shards = prepare_shards(tmp_path, [rows(0, 5), rows(1, 200)])
    first, second = shards.ids
    attempt(shards.job, tmp_path, shard=first, work_ahead_s=60)
    ((_, ahead),) = shards.segments(second).items()
    assert set(ahead[:4]) <= set(shards.ids[second][-8:])


@pytest.fixture
def no_row_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    """The last rows are waited for: else those that end a moment after the others run again."""
    monkeypatch.setattr("shardline.worker.ahead._WORTH_WAITING", 0.0)


@pytest.mark.usefixtures("no_row_dropped")
def test_without_a_tail_of_its_own_it_still_goes_on(tmp_path: Path) -> None:
    shards = prepare_shards(tmp_path, [rows(0, 4, first=""), rows(1, 12, first="")])
    first, second = shards.ids
    attempt(shards.job, tmp_path, shard=first, work_ahead_s=60)
    (record,) = read_attempts(shards.job.store, shards.job.plan.layout, first)
    assert record.counts.ahead == 12
    assert attempt(shards.job, tmp_path, shard=second) is ExitCode.DONE
    assert shards.results(second) == shards.ids[second]


def test_an_engine_that_dies_ahead_ends_it_at_once_and_convicts_nobody(tmp_path: Path) -> None:
    poison = [*rows(1, 12), "[stub:die]"]
    shards = prepare_shards(tmp_path, [rows(0, 4, first=""), poison])
    first = next(iter(shards.ids))
    assert attempt(shards.job, tmp_path, shard=first, work_ahead_s=60) is ExitCode.DONE
    assert shards.results(first) == shards.ids[first]
    (record,) = read_attempts(shards.job.store, shards.job.plan.layout, first)
    assert (record.suspects, record.convictions) == ([], [])


def test_the_rows_that_are_known_to_be_long_go_first_whichever_shard_they_are_of() -> None:
    shards = [FakeShard({0: 5, 1: 90}), FakeShard({0: 400, 1: 7})]
    rows = [Row(shard, n) for shard in shards for n in (0, 1)]  # type: ignore[arg-type]
    assert [(shards.index(r.shard), r.number) for r in in_far_order(rows)] == [  # type: ignore[arg-type]
        (1, 0),
        (0, 1),
        (1, 1),
        (0, 0),
    ]


@pytest.mark.usefixtures("no_row_dropped")
def test_it_goes_on_after_its_own_rows_for_as_long_as_it_may(tmp_path: Path) -> None:
    shards = prepare_shards(tmp_path, [rows(0, 5), rows(1, 40), rows(2, 40)])
    first, second, third = shards.ids
    attempt(shards.job, tmp_path, shard=first, work_ahead_s=60)
    (record,) = read_attempts(shards.job.store, shards.job.plan.layout, first)
    assert record.counts.ahead == 80
    assert record.seconds.ahead > 0
    for shard in (second, third):
        assert attempt(shards.job, tmp_path, shard=shard) is ExitCode.DONE
        (record,) = read_attempts(shards.job.store, shards.job.plan.layout, shard)
        assert (record.resumed_rows, record.seconds.useful) == (40, 0)  # no engine was started
        assert shards.results(shard) == shards.ids[shard]


def test_it_is_off_unless_it_is_asked_for(tmp_path: Path) -> None:
    shards = prepare_shards(tmp_path, [rows(0), rows(1)])
    first, second = shards.ids
    attempt(shards.job, tmp_path, shard=first)
    assert shards.segments(second) == {}


def test_a_shard_that_has_been_started_or_is_done_is_left_alone(tmp_path: Path) -> None:
    shards = prepare_shards(tmp_path, [rows(0), rows(1), rows(2)])
    first, started, done = shards.ids
    store, layout = shards.job.store, shards.job.plan.layout
    store.write(layout.attempt(started, "somebody"), b"{}")
    assert attempt(shards.job, tmp_path, shard=done) is ExitCode.DONE
    before = shards.segments(done)
    assert attempt(shards.job, tmp_path, shard=first, work_ahead_s=60) is ExitCode.DONE
    assert (shards.segments(started), shards.segments(done)) == ({}, before)


def test_another_shard_that_is_broken_does_not_hurt_ours(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    shards = prepare_shards(tmp_path, [rows(0), rows(1)])
    first, second = shards.ids
    shards.job.store.write(shards.job.plan.layout.shard(second), b"{}\n")
    assert attempt(shards.job, tmp_path, shard=first, work_ahead_s=60) is ExitCode.DONE
    assert shards.results(first) == shards.ids[first]
    assert any("no work ahead" in r.message and second in r.message for r in caplog.records)


def test_told_to_stop_it_commits_what_it_did_ahead(tmp_path: Path) -> None:
    shards = prepare_shards(tmp_path, [rows(0), rows(1, 400)])
    first, second = shards.ids

    def is_ahead(_: Prepared) -> bool:
        return bool(shards.segments(second))

    code = attempt(shards.job, tmp_path, shard=first, work_ahead_s=60, stop_when=is_ahead)
    assert code in (ExitCode.DRAINED, ExitCode.DONE)
    (record,) = read_attempts(shards.job.store, shards.job.plan.layout, first)
    assert record.counts.ahead == sum(map(len, shards.segments(second).values()))
    assert attempt(shards.job, tmp_path, shard=second) is ExitCode.DONE
    assert shards.results(second) == shards.ids[second]


@pytest.mark.slow
@pytest.mark.protocol(10)
def test_a_document_of_another_shard_that_kills_the_worker_costs_ours_one_attempt(
    tmp_path: Path,
) -> None:
    killer = [*rows(1, 11), "[stub:kill]"]  # the shortest, so the first at the far end
    shards = prepare_shards(tmp_path, [rows(0), killer])
    first, second = shards.ids
    assert shards.start(first).wait() == -9
    assert shards.start(first).wait() == 0
    _, record = read_attempts(shards.job.store, shards.job.plan.layout, first)
    assert record.ahead == []
    codes = [shards.start(second).wait()]
    while codes[-1] != 0:
        codes.append(shards.start(second).wait())
    lines = read_results(shards.job.store, shards.job.plan.layout.results(second))
    dead = [line.custom_id for line in lines if line.error]
    assert dead == [shards.ids[second][-1]]


@pytest.mark.slow
@pytest.mark.protocol(7, 8)
def test_eight_workers_on_eight_shards_lose_and_double_nothing(tmp_path: Path) -> None:
    seed = 20261130
    draw = random.Random(seed)
    texts = []
    for number in range(8):
        tail = ["[stub:slow]"] * 3  # the shortest texts, so they are fed last
        texts.append([*rows(number, draw.randint(20, 60)), *tail])
    shards = prepare_shards(tmp_path, texts)
    workers: dict[str, Worker] = {}
    for shard in draw.sample(sorted(shards.ids), 8):
        # each begins while those before are at work: they are ahead on shards that begin later
        workers[shard] = shards.start(shard)
        workers[shard].read_until("rows done")
    assert {shard: worker.wait() for shard, worker in workers.items()} == dict.fromkeys(workers, 0)
    for shard, ids in shards.ids.items():
        content = shards.job.store.read(shards.job.plan.layout.results(shard))
        lines = [json.loads(line) for line in content.splitlines()]
        assert [line["custom_id"] for line in lines] == ids, f"seed {seed}"
        assert all(line["error"] is None for line in lines)
    layout, store = shards.job.plan.layout, shards.job.store
    ahead = sum(a.counts.ahead for s in shards.ids for a in read_attempts(store, layout, s))
    assert ahead > 0
