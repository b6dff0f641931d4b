"""A model folder exists only when it is whole."""

from pathlib import Path

import pytest

tokenizers = pytest.importorskip("tokenizers")  # comes with vLLM: absent on macOS

from samples.checkpoint import is_whole, make_once  # noqa: E402
from samples.tiny_model import make_tiny_model  # noqa: E402


def write_one_file(folder: Path) -> None:
    (folder / "config.json").write_text("{}")


def test_a_build_that_fails_leaves_nothing(tmp_path: Path):
    def fail(folder: Path) -> None:
        write_one_file(folder)
        raise OSError("disk full")

    with pytest.raises(OSError, match="disk full"):
        make_once(tmp_path / "model", fail)
    assert list(tmp_path.iterdir()) == []


def test_a_whole_folder_is_left_alone(tmp_path: Path):
    assert make_once(tmp_path / "model", write_one_file)
    assert not make_once(tmp_path / "model", pytest.fail)


def test_a_damaged_folder_is_made_again(tmp_path: Path):
    make_once(tmp_path / "model", write_one_file)
    (tmp_path / "model" / "config.json").write_text("{")
    assert not is_whole(tmp_path / "model")
    assert make_once(tmp_path / "model", write_one_file)
    assert is_whole(tmp_path / "model")


def test_of_two_that_build_it_at_once_the_first_stays(tmp_path: Path):
    """Somebody may be reading it by then."""
    folder = tmp_path / "model"

    def be_overtaken(mine: Path) -> None:
        make_once(folder, write_one_file)
        (mine / "config.json").write_text('{"late": true}')

    assert not make_once(folder, be_overtaken)
    assert (folder / "config.json").read_text() == "{}"
    assert is_whole(folder)
    assert list(tmp_path.iterdir()) == [folder]


def test_the_tiny_model_has_the_same_weights_each_time(tmp_path: Path):
    folders = [make_tiny_model(tmp_path / name) for name in ("one", "two")]
    one, two = ((folder / "model.safetensors").read_bytes() for folder in folders)
    assert one == two


def test_the_tiny_tokenizer_gives_text_back(tmp_path: Path):
    path = make_tiny_model(tmp_path / "tiny") / "tokenizer.json"
    tokenizer = tokenizers.Tokenizer.from_file(str(path))
    text = "na\u00efve caf\u00e9, 9\u00bd weeks"
    assert tokenizer.decode(tokenizer.encode(text).ids) == text
