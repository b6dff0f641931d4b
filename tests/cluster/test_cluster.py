"""What the other tests take for granted: GPUs that are counted, and nodes that only pretend."""

import pytest
from kubernetes import client

from tests.cluster.ground import GPU, Ground
from tests.cluster.pods import Pods, PodState, disruption, end_of, exit_code, shell

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(600)]


def is_refused(state: PodState) -> bool:
    conditions = state.status.conditions or []
    return any(c.reason == "Unschedulable" and GPU in c.message for c in conditions)


def test_gpus_are_counted_and_the_next_pod_waits_for_one(
    ground: Ground, pods: Pods, gpus: int
) -> None:
    every = pods.start(shell(ground.image, "sleep 600", {GPU: str(gpus)}))
    every.wait_running()
    script = "echo $NVIDIA_VISIBLE_DEVICES > /dev/termination-log"
    one = pods.start(shell(ground.image, script, {GPU: "1"}))
    one.wait("refused", is_refused)
    every.delete(grace_s=0)
    ended = end_of(one.wait_ended())
    assert ended.exit_code == 0
    assert ended.message.startswith("GPU-")


def test_an_ended_pod_is_seen_with_its_exit_code_and_message(ground: Ground, pods: Pods) -> None:
    state = pods.start(shell(ground.image, "echo why > /dev/termination-log; exit 70")).wait_ended()
    assert (exit_code(state), end_of(state).message.strip()) == (70, "why")
    assert disruption(state) is None


@pytest.mark.parametrize("code", [0, 70])
def test_a_pod_on_a_fake_node_ends_as_its_annotations_say(
    ground: Ground, pods: Pods, fake_nodes: str, code: int
) -> None:
    spec = on_fake_nodes(shell(ground.image, "true", {GPU: "8"}), fake_nodes)
    notes = {"fake/run-time": "1", "fake/exit-code": str(code)}
    assert exit_code(pods.start(spec, notes).wait_ended()) == code


def test_an_evicted_pod_on_a_fake_node_drains(ground: Ground, pods: Pods, fake_nodes: str) -> None:
    spec = on_fake_nodes(shell(ground.image, "true"), fake_nodes)
    pod = pods.start(spec, {"fake/drain-time": "1", "fake/drain-code": "75"})
    pod.wait_running()
    pod.evict()
    state = pod.wait_ended()
    assert (exit_code(state), disruption(state)) == (75, "EvictionByEvictionAPI")


def on_fake_nodes(spec: client.V1PodSpec, label: str) -> client.V1PodSpec:
    spec.node_selector = {"type": label}
    spec.tolerations = [client.V1Toleration(key="fake", operator="Exists")]
    return spec
