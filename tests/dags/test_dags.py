"""The dags of the project: they load, and keep the rules that a run's safety hangs on."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import Any

import pytest
from airflow.configuration import conf
from airflow.dag_processing.dagbag import DagBag

from deploy.embedded.stack import pools_here
from shardline.runners.waves import MAX_LIVING, WAVE
from shardline_airflow.gpu_operator import InferShardOnGpu
from tests.airflow_home import PROJECT

DAGS = PROJECT / "dags"
WAVE_DAGS = ("infer_locally", "infer_on_gpu", "infer_on_gpu_short")
BROUGHT_BY_AIRFLOW = {"default_pool"}


@pytest.fixture(scope="module")
def bag() -> DagBag:
    return DagBag(str(DAGS))


def all_tasks(bag: DagBag) -> list[Any]:
    return [task for dag in bag.dags.values() for task in dag.tasks]


def test_every_dag_file_loads(bag: DagBag) -> None:
    assert bag.import_errors == {}
    expected = {"batch_inference", "replay_dead_letters", *WAVE_DAGS, "daily-reviews"}
    assert expected | {"consume_example"} <= set(bag.dags)


def test_the_only_leaf_is_check_outcome_since_a_run_takes_the_state_of_its_leaves(
    bag: DagBag,
) -> None:
    for dag_id in ("batch_inference", "replay_dead_letters", *WAVE_DAGS, "daily-reviews"):
        (leaf,) = bag.dags[dag_id].leaves
        assert leaf.task_id == "check_outcome"
        rule = "all_done_setup_success" if dag_id in WAVE_DAGS else "all_done"
        assert leaf.trigger_rule.value == rule


def test_what_follows_a_wave_s_shards_still_runs_when_somebody_marks_the_run_failed(
    bag: DagBag,
) -> None:
    for dag_id in WAVE_DAGS:
        dag = bag.dags[dag_id]
        followers = dag.get_task("infer_shard").get_flat_relatives(upstream=False)
        assert "check_outcome" in {task.task_id for task in followers}
        for task in followers:
            assert (task.is_teardown, task.on_failure_fail_dagrun) == (True, True), task.task_id


def test_every_dag_says_how_to_use_it(bag: DagBag) -> None:
    for dag in bag.dags.values():
        assert dag.doc_md, dag.dag_id


def test_every_param_has_type_title_and_description(bag: DagBag) -> None:
    for dag in bag.dags.values():
        for name, param in dag.params.items():
            schema = dag.params.get_param(name).schema
            assert {"type", "title"} <= set(schema), (dag.dag_id, name)
            assert dag.params.get_param(name).description, (dag.dag_id, name, param)


def test_every_stage_is_retried_by_class_of_its_error(bag: DagBag) -> None:
    for task in all_tasks(bag):
        if task.dag_id != "consume_example":
            assert task.retries >= 2, task.task_id
            assert task.retry_policy is not None, task.task_id


def test_every_pool_is_made_by_the_stack(bag: DagBag) -> None:
    assert {task.pool for task in all_tasks(bag)} <= BROUGHT_BY_AIRFLOW | set(pools_here())


def test_a_wave_fits_what_airflow_maps_and_runs_at_once(bag: DagBag) -> None:
    assert conf.getint("core", "max_map_length") >= WAVE
    for dag_id in WAVE_DAGS:
        assert bag.dags[dag_id].max_active_tasks >= WAVE
        # a job whose stragglers keep all its waves alive does not hold up the first wave of the next
        assert bag.dags[dag_id].max_active_runs >= 2 * MAX_LIVING


def test_a_shard_in_a_pod_waits_without_a_process_and_reads_no_log_that_may_hang(
    bag: DagBag,
) -> None:
    for dag_id, pool in {"infer_on_gpu": "gpu", "infer_on_gpu_short": "gpu_short"}.items():
        shard = bag.dags[dag_id].get_task("infer_shard")
        assert shard.pool == pool
        operator = InferShardOnGpu(task_id="x", number=0)
        assert operator.deferrable
        assert not operator.get_logs
        assert not operator.do_xcom_push
        assert "reap_pods" in shard.downstream_task_ids


def test_no_task_fails_for_good_because_the_dag_was_slow_to_import(bag: DagBag) -> None:
    heavy = {"pyarrow", "duckdb", "deltalake", "pandas", "vllm", "torch", "great_expectations"}
    for path in DAGS.glob("*.py"):
        for node in ast.parse(path.read_text()).body:
            names = {a.name for a in node.names} if isinstance(node, ast.Import) else set()
            names |= {node.module or ""} if isinstance(node, ast.ImportFrom) else set()
            assert not heavy & {n.split(".")[0] for n in names}, path.name


def task_bodies() -> list[tuple[str, ast.FunctionDef]]:
    own = PROJECT / "include/shardline_airflow"
    files = [*DAGS.glob("*.py"), own / "job_tasks.py", own / "wave_tasks.py"]
    return [
        (f"{path.name}:{node.name}", node)
        for path in files
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.FunctionDef)
        and any("task" in ast.unparse(d) for d in node.decorator_list)
    ]


def test_task_bodies_import_call_and_return() -> None:
    for name, node in task_bodies():
        imports = [s for s in node.body if isinstance(s, ast.ImportFrom)]
        assert imports, name
        assert len(node.body) - len(imports) <= 3, name


def test_importing_the_dags_does_not_import_what_is_heavy(tmp_path: Path) -> None:
    import subprocess
    import sys

    code = (
        "import sys; from airflow.dag_processing.dagbag import DagBag; "
        f"bag = DagBag({str(DAGS)!r}); assert not bag.import_errors, bag.import_errors; "
        "print(sorted({'pyarrow', 'duckdb', 'deltalake', 'pandas', 'vllm', 'torch',"
        " 'great_expectations', 'matplotlib'} & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=True,
        cwd=tmp_path,
        env={
            "PYTHONPATH": str(PROJECT / "include"),
            "AIRFLOW_HOME": str(tmp_path),
            "AIRFLOW__CORE__DAGBAG_IMPORT_TIMEOUT": "120",  # as every deployment of ours
            "PATH": "",
        },
    )
    assert done.stdout.splitlines()[-1] == "[]"
