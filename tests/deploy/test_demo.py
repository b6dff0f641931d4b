"""What the demo tells while a run goes on, and how it judges the model."""

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from deploy.embedded.demo import Agreement, agreement, settled


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
