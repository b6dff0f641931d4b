import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import boto3
import pytest
from kubernetes import client, config

from deploy.embedded.stack import embedded_airflow
from shardline.store import open_store
from tests.airflow_home import use_own_airflow_home
from tests.cluster.gpu_ground import gpu_environment
from tests.cluster.ground import GPU, Ground, read_ground
from tests.cluster.pods import Pods, make_namespace, make_secret
from tests.cluster.stack_ground import JOBS, ROWS, STACK_ENV, WAVES, ClusterStack
from tests.factories import make_rows, write_corpus
from tests.s3_server import s3_server

use_own_airflow_home()


@pytest.fixture(scope="session")
def ground() -> Ground:
    return read_ground()


@pytest.fixture(scope="session")
def api(ground: Ground) -> client.CoreV1Api:
    config.load_kube_config(ground.kubeconfig)
    return client.CoreV1Api()


@pytest.fixture(scope="session")
def namespace(api: client.CoreV1Api) -> Iterator[str]:
    """A namespace of the tests' own, ready to take pods."""
    name = make_namespace(api, "test-")
    yield name
    api.delete_namespace(name)


@pytest.fixture
def pods(api: client.CoreV1Api, namespace: str) -> Iterator[Pods]:
    started = Pods(api, namespace)
    yield started
    started.remove()


@pytest.fixture(scope="session")
def gpus(api: client.CoreV1Api) -> int:
    """How many GPUs the nodes offer; those that only pretend do not count."""
    nodes = api.list_node(label_selector="type!=fake").items
    offered = sum(int((node.status.allocatable or {}).get(GPU, 0)) for node in nodes)
    if not offered:
        pytest.skip(f"no node of this cluster offers {GPU}")
    return offered


@pytest.fixture(scope="session")
def bucket(ground: Ground) -> Iterator[dict[str, str]]:
    """An object store with the bucket `lake`, for this process and for pods: its environment."""
    if ground.host is None:
        pytest.skip("TEST_HOST does not say at which address pods reach this machine")
    with s3_server(host=ground.host) as env, pytest.MonkeyPatch.context() as patch:
        for name, value in env.items():
            patch.setenv(name, value)
        boto3.client("s3").create_bucket(Bucket="lake")
        yield env


@pytest.fixture(scope="session")
def secret(api: client.CoreV1Api, namespace: str, bucket: dict[str, str]) -> str:
    """The keys of the bucket, as pods without an identity of their own get them."""
    return make_secret(api, namespace, bucket)


@pytest.fixture(scope="session")
def fake_nodes() -> str:
    """Three nodes of eight GPUs that only pretend (see kwok/stages.yaml); returns their label."""
    if "CLUSTER_STATE" not in os.environ:
        pytest.skip("kwok, which plays nodes, is part of the cluster of tests/cluster only")
    subprocess.run([Path(__file__).with_name("fakenodes.sh"), "3", "8"], check=True)
    return "fake"


@pytest.fixture(scope="session")
def stack(
    ground: Ground,
    api: client.CoreV1Api,
    bucket: dict[str, str],
    namespace: str,
    gpus: int,
    secret: str,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[ClusterStack]:
    """A whole Airflow beside the cluster, with a corpus; one for all tests, it takes half a minute."""
    folder = tmp_path_factory.mktemp("stack")
    write_corpus(folder, make_rows(ROWS))
    env = {**bucket, **gpu_environment(ground, folder, namespace, secret), **STACK_ENV}
    store = open_store(env["SHARDLINE_ROOT"])
    with embedded_airflow(folder / "airflow", env=env, dags=[JOBS, WAVES]) as airflow:
        yield ClusterStack(airflow, store, folder, api, namespace)
