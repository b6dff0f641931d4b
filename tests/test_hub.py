"""What the hub refuses is found in the plan, and says what a person has to do."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
from filelock import FileLock

from shardline.cli.boundary import run_command
from shardline.errors import ModelNotFound, SickMachine, StoreUnavailable, WrongInput
from shardline.hub import cached_hub_folder, hub_commit, hub_folder, ignored_files
from shardline.job_blocks import EngineBlock
from shardline.runners.gpu.check import check_gpu_job
from shardline.weights.cache import local_model_folder
from tests.factories import make_job, make_rows, write_corpus
from tests.hub_server import COMMIT, TOKEN, Hub, HubModel, git_sha1, hub_server

FILES = {"config.json": b"{}", "model.safetensors": b"\2" * 100, "pytorch_model.bin": b"\1" * 100}
JOB = """
name: hub-job
corpus: {uri: corpus}
messages: [{role: user, content: "{{ text }}"}]
local: {model: org/gated}
"""


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Hub]:
    import huggingface_hub.constants as constants

    # both are read once, at import
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(constants, "HF_TOKEN_PATH", str(tmp_path / "no-token"))
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    for name in ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN", "HF_HOME", "HF_HUB_CACHE"):
        monkeypatch.delenv(name, raising=False)
    with hub_server() as hub:
        monkeypatch.setenv("HF_ENDPOINT", hub.url)
        hub.models = {
            "org/open": HubModel(FILES, branches=("main", "v1")),
            "org/gated": HubModel(FILES, is_gated=True),
        }
        yield hub


def test_a_branch_is_resolved_to_its_commit(hub: Hub) -> None:
    assert hub_commit("org/open", "v1") == COMMIT


def test_a_missing_revision_is_named(hub: Hub) -> None:
    with pytest.raises(ModelNotFound, match="it has no revision v2; give a branch, tag or commit"):
        hub_commit("org/open", "v2")


def test_a_model_that_nobody_has_is_named(hub: Hub) -> None:
    with pytest.raises(ModelNotFound, match=r"org/none: the hub has no such model, or a private"):
        hub_commit("org/none", "main")


def test_a_gated_model_says_what_to_accept_and_what_to_set(
    hub: Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(ModelNotFound) as without_token:
        hub_commit("org/gated", "main")
    assert f"accept its terms at {hub.url}/org/gated" in str(without_token.value)
    assert "set HF_TOKEN to a token of that account" in str(without_token.value)
    monkeypatch.setenv("HF_TOKEN", "hf_of_another")
    with pytest.raises(ModelNotFound, match=r"with the account of HF_TOKEN$"):
        hub_commit("org/gated", "main")
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    assert hub_commit("org/gated", "main") == COMMIT


@pytest.mark.parametrize("status", [429, 500, 503])
def test_a_hub_that_is_busy_may_answer_later(hub: Hub, status: int) -> None:
    hub.status = status
    with pytest.raises(StoreUnavailable, match=f"come back later \\(status {status}\\)"):
        hub_commit("org/open", "main")


def test_a_forbidden_token_is_said(hub: Hub) -> None:
    hub.status = 403
    with pytest.raises(ModelNotFound, match="the hub refuses HF_TOKEN"):
        hub_commit("org/open", "main")


def test_the_plan_of_a_gated_model_ends_with_exit_2(
    hub: Hub, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_corpus(tmp_path, make_rows(2))
    (tmp_path / "job.yaml").write_text(JOB)
    root = str(tmp_path / "root")
    assert run_command(["plan", str(tmp_path / "job.yaml"), "--root", root]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "org/gated" in line
    assert "accept its terms at" in line
    assert not list(Path(root).rglob("plan.json"))


def test_a_gated_model_for_which_pods_have_no_token_is_found_by_the_plan(
    hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Airflow's token is not theirs: each of them would end as wrong input."""
    gated = make_job(tmp_path, run_on="gpu", gpu={"model": "org/gated"})
    check_gpu_job(gated, "s3://lake", {})  # without a token the plan itself says what is missing
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    with pytest.raises(WrongInput, match="SHARDLINE_GPU_HF_TOKEN_SECRET: the hub gives org/gated"):
        check_gpu_job(gated, "s3://lake", {})
    check_gpu_job(make_job(tmp_path, run_on="gpu", gpu={"model": "org/open"}), "s3://lake", {})
    with pytest.raises(ModelNotFound, match="org/none: the hub has no such model"):
        check_gpu_job(make_job(tmp_path, run_on="gpu", gpu={"model": "org/none"}), "s3://lake", {})
    monkeypatch.setenv("SHARDLINE_GPU_HF_TOKEN_SECRET", "hub")
    check_gpu_job(gated, "s3://lake", {})


def test_a_folder_of_the_hub_holds_what_an_engine_reads(hub: Hub, tmp_path: Path) -> None:
    folder = hub_folder("org/open", COMMIT, tmp_path / "hub")
    assert folder == cached_hub_folder("org/open", COMMIT, tmp_path / "hub")
    assert sorted(p.name for p in folder.iterdir()) == ["config.json", "model.safetensors"]
    assert (folder / "model.safetensors").read_bytes() == FILES["model.safetensors"]
    hub.asked.clear()
    assert hub_folder("org/open", COMMIT, tmp_path / "hub") == folder
    assert not [asked for asked in hub.asked if asked.startswith("GET /org")]


def test_a_disk_that_fails_is_no_missing_model(hub: Hub, tmp_path: Path) -> None:
    (tmp_path / "full").touch()
    with pytest.raises(SickMachine, match="org/open"):
        hub_folder("org/open", COMMIT, tmp_path / "full" / "hub")


def test_a_hub_that_goes_away_while_it_gives_is_no_missing_model(hub: Hub, tmp_path: Path) -> None:
    hub.refused_files = ("model.safetensors",)
    with pytest.raises(StoreUnavailable):
        hub_folder("org/open", COMMIT, tmp_path / "hub")
    hub.refused_files = ()
    assert (hub_folder("org/open", COMMIT, tmp_path / "hub") / "model.safetensors").exists()


def test_a_chunk_storage_that_is_away_is_no_missing_model(
    hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Most models lie there; its library has a word of its own for a network that fails."""
    monkeypatch.setenv("HF_XET_CLIENT_RETRY_MAX_ATTEMPTS", "1")
    with socket.create_server(("127.0.0.1", 0)) as server:
        nobody = f"http://127.0.0.1:{server.getsockname()[1]}"
    hub.elsewhere = {"model.safetensors": nobody}
    with pytest.raises(StoreUnavailable, match="org/open"):
        hub_folder("org/open", COMMIT, tmp_path / "hub")
    hub.elsewhere = {}
    assert (hub_folder("org/open", COMMIT, tmp_path / "hub") / "model.safetensors").exists()


def test_a_disk_that_is_too_small_is_found_before_the_first_byte(hub: Hub, tmp_path: Path) -> None:
    hub.models["org/huge"] = HubModel(FILES, sizes={"model.safetensors": 1 << 50})
    with pytest.raises(SickMachine, match=r"the model needs 1125899\.9 GB more, and .* free"):
        hub_folder("org/huge", COMMIT, tmp_path)
    assert not [asked for asked in hub.asked if "model.safetensors" in asked]


def test_what_another_process_has_of_a_model_needs_no_more_room(
    hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    content = b"\3" * 10_000
    hub.models["org/some"] = HubModel({"config.json": content})
    small = SimpleNamespace(disk_usage=lambda _: SimpleNamespace(free=5_000))
    monkeypatch.setattr("shardline.disk.shutil", small)
    with pytest.raises(SickMachine, match="org--some"):
        hub_folder("org/some", COMMIT, tmp_path)
    _, lock = leave_part(tmp_path, "models--org--some", content)
    lock.acquire()  # as who fetches it does
    threading.Timer(0.2, lock.release).start()
    assert (hub_folder("org/some", COMMIT, tmp_path) / "config.json").read_bytes() == content


def test_what_a_killed_fetch_has_left_is_removed(hub: Hub, tmp_path: Path) -> None:
    """Each fetch names its own part, so that nobody would ever go on with it."""
    part, lock = leave_part(tmp_path, "models--org--open", FILES["config.json"][:5])
    other, held = leave_part(tmp_path, "models--org--open", b"a file of another commit")
    with held:
        hub_folder("org/open", COMMIT, tmp_path)
    assert not part.exists()
    assert other.exists()
    hub_folder("org/open", COMMIT, tmp_path)
    assert not other.exists()
    assert not lock.is_locked


def leave_part(cache: Path, folder: str, content: bytes) -> tuple[Path, FileLock]:
    """What a fetch has so far of a file, and the lock that it holds meanwhile."""
    tag = git_sha1(content)
    part = cache / folder / "blobs" / f"{tag}.1234abcd.incomplete"
    lock = cache / ".locks" / folder / f"{tag}.lock"
    for path in (part, lock):
        path.parent.mkdir(parents=True, exist_ok=True)
    part.write_bytes(content)
    return part, FileLock(lock, thread_local=False)


def test_a_model_that_is_whole_here_is_opened_without_the_hub(hub: Hub, tmp_path: Path) -> None:
    block = EngineBlock(model="org/open")
    folder = local_model_folder(block, COMMIT, tmp_path)
    hub.asked.clear()
    hub.status = 503
    assert local_model_folder(block, COMMIT, tmp_path) == folder
    assert hub.asked == []
    (folder / "model.safetensors").unlink()
    with pytest.raises(StoreUnavailable):
        local_model_folder(block, COMMIT, tmp_path)
    hub.status = None
    assert local_model_folder(block, COMMIT, tmp_path) == folder
    assert (folder / "model.safetensors").read_bytes() == FILES["model.safetensors"]


def test_a_file_that_comes_with_other_bytes_comes_again(hub: Hub, tmp_path: Path) -> None:
    block = EngineBlock(model="org/open")
    hub.spoiled["model.safetensors"] = 1
    folder = local_model_folder(block, COMMIT, tmp_path)
    assert (folder / "model.safetensors").read_bytes() == FILES["model.safetensors"]


def test_a_file_that_was_damaged_later_comes_again(hub: Hub, tmp_path: Path) -> None:
    """The hub's library finds its name there and takes it."""
    block = EngineBlock(model="org/open")
    file = local_model_folder(block, COMMIT, tmp_path) / "model.safetensors"
    file.resolve().write_bytes(b"short")
    assert local_model_folder(block, COMMIT, tmp_path) == file.parent
    assert file.read_bytes() == FILES["model.safetensors"]


def test_wrong_bytes_twice_are_an_error_and_no_model(hub: Hub, tmp_path: Path) -> None:
    block = EngineBlock(model="org/open")
    hub.spoiled["model.safetensors"] = 2
    with pytest.raises(StoreUnavailable, match=r"model\.safetensors came with other bytes"):
        local_model_folder(block, COMMIT, tmp_path)
    folder = local_model_folder(block, COMMIT, tmp_path)
    assert (folder / "model.safetensors").read_bytes() == FILES["model.safetensors"]


def test_a_folder_that_another_one_makes_is_waited_for(
    hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a new node a worker may come a moment earlier than the node cache."""
    cache = tmp_path / "cache"
    cache.touch()  # nobody can write below it, whoever he is

    def make() -> None:
        cache.unlink()
        cache.mkdir()

    with pytest.raises(SickMachine, match="cannot make this folder"):
        local_model_folder(EngineBlock(model="org/open"), COMMIT, cache / "models")
    monkeypatch.setenv("SHARDLINE_CACHE_PATIENCE_S", "60")
    other = threading.Timer(0.2, make)
    other.start()
    folder = local_model_folder(EngineBlock(model="org/open"), COMMIT, cache / "models")
    other.join()
    assert (folder / "config.json").exists()


def test_other_forms_of_weights_come_only_where_safetensors_are_missing() -> None:
    assert "*.bin" in ignored_files(["config.json", "a.safetensors", "a.bin"])
    assert "*.bin" not in ignored_files(["config.json", "a.bin"])
