"""What the demo tells while a run goes on, and how it judges the model."""

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from deploy.embedded.follower import settled
from deploy.embedded.outcome import Agreement, agreement, attempt_line
from shardline.attempts import new_attempt
from shardline.reasons import AttemptEnd


def test_a_mapped_task_is_told_once_all_its_instances_have_ended():
    states = {"plan_job": "success", "scan_corpus[0]": "success", "scan_corpus[1]": "running"}
    assert settled(states) == {"plan_job": "success"}
    assert settled(states | {"scan_corpus[1]": "failed"}) == {
        "plan_job": "success",
        "scan_corpus": "1 success, 1 failed",
    }


def test_a_retry_is_told_at_once():
    assert settled({"merge_shards": "up_for_retry"}) == {"merge_shards": "up_for_retry"}


def test_agreement_leaves_neutral_ratings_and_rows_without_a_label_out(tmp_path: Path):
    rated = {"good": 2.5, "bad": -1.0, "neutral": 0.0, "unclear": 1.0, "wrong": -3.0}
    corpus = tmp_path / "corpus.jsonl"
    lines = [{"id": name, "text": name, "rating": rating} for name, rating in rated.items()]
    corpus.write_text("".join(json.dumps(line) + "\n" for line in lines))
    outputs = ["positive", "negative", "positive", None, "positive"]
    published = tmp_path / "part.parquet"
    pq.write_table(pa.table({"document_id": list(rated), "output": outputs}), published)

    assert agreement([str(published)], str(corpus)) == Agreement(rated=3, right=2, positive=1)


def test_an_attempt_is_told_with_the_pod_that_it_ran_in():
    attempt = new_attempt("a", "shard-00000-000", 1, "pod-1", 1, pod_uid="uid", node="node-7")
    attempt.resumed_rows, attempt.counts.results = 120, 380
    attempt.seconds.start, attempt.end = 41.2, AttemptEnd.DONE
    assert attempt_line(attempt) == (
        "shard-00000-000  done: 120 rows resumed, 380 results, engine ready after 41 s; "
        "pod pod-1 on node-7"
    )


def test_an_attempt_that_nobody_saw_the_end_of_says_so():
    told = attempt_line(new_attempt("a", "shard-00000-000", 1, "machine", 7))
    assert "no end recorded: 0 results" in told
    assert told.endswith("machine, pid 7")
