"""The workers that the bench of pods pretends to have: their tasks must not see a difference."""

from pathlib import Path

import pytest
from kubernetes import client

from benchmarks.bench_airflow.pretend_workers import PretendWorkers
from shardline.attempts import read_attempt
from shardline.reasons import AttemptEnd
from shardline.runners.gpu.errand import ATTEMPT, SHARD
from shardline.shards.manifest import read_shard_name
from tests.results.answers import small_job
from tests.waits import until

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(900)]

MINE = "019a0000-0000-7000-8000-000000000001"


def test_a_pretended_worker_commits_its_shard_and_then_its_pod_ends(
    api: client.CoreV1Api, namespace: str, fake_nodes: str, tmp_path: Path
) -> None:
    store, plan = small_job(tmp_path, [{"id": "d", "text": "t"}])
    shard = read_shard_name(store, plan, 0)
    workers = PretendWorkers(api, namespace, (store, plan))
    workers.start()
    pod = {
        "metadata": {"name": "pretended", "labels": {SHARD: shard, ATTEMPT: MINE}},
        "spec": {
            "nodeSelector": {"type": fake_nodes},
            "tolerations": [{"key": "fake", "operator": "Exists"}],
            "containers": [{"name": "base", "image": "localhost/pretended:1"}],
            "restartPolicy": "Never",
        },
    }
    api.create_namespaced_pod(namespace, pod)
    until("running pod", lambda: [life.name for life in workers.running] == ["pretended"])
    assert store.info(plan.layout.progress(shard, MINE))
    assert not store.exists(plan.layout.results(shard))

    workers.end(workers.running)
    assert store.exists(plan.layout.results(shard))
    (life,) = workers.lives.values()
    until("end", lambda: life.ended_at)
    record = read_attempt(store, plan.layout, shard, MINE)
    assert record
    assert (record.end, record.exit_code) == (AttemptEnd.DONE, 0)
    assert workers.unjudged == 1

    api.delete_namespaced_pod("pretended", namespace, grace_period_seconds=0)
    until("deletion", lambda: life.is_gone)
    assert not workers.unjudged
    workers.check()
    workers.stop()
