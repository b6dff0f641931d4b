"""The demo's corpus: 14,313 review sentences that people have rated, as two JSONL files.

They come with the package vaderSentiment (Hutto & Gilbert, "VADER: A Parsimonious Rule-based Model
for Sentiment Analysis of Social Media Text", ICWSM-14; MIT licence), so the ordinary package client
can fetch them, and their human ratings let the demo say how often the model was right. Only the
source distribution holds them. It is trusted by its hash, and so are the files made from it.

    python -m samples.reviews [FOLDER]          default: var/corpus/reviews
"""

import hashlib
import io
import json
import sys
import tarfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from samples.package import fetch_package

SDIST = "vaderSentiment-3.3.2.tar.gz"
REQUIREMENT = (
    "vaderSentiment==3.3.2 "
    "--hash=sha256:5d7c06e027fc8b99238edb0d53d970cf97066ef97654009890b83703849632f9"
)
ARCHIVE = "vaderSentiment-3.3.2/additional_resources/hutto_ICWSM_2014.tar.gz"
FOLDER = Path("var/corpus/reviews")


@dataclass(frozen=True)
class Source:
    """One raw file of the archive and the corpus file that is made from it."""

    kind: str
    member: str
    rows: int
    sha256: str

    @property
    def name(self) -> str:
        return f"{self.kind}_reviews.jsonl"


SOURCES = (
    Source(
        kind="movie",
        member="hutto_ICWSM_2014/movieReviewSnippets_GroundTruth.txt",
        rows=10_605,
        sha256="afb2928b7be542546d8c484ac34c01f80b839729a224928799d02d124b7af870",
    ),
    Source(
        kind="product",
        member="hutto_ICWSM_2014/amazonReviewSnippets_GroundTruth.txt",
        rows=3_708,
        sha256="edfc9cef0ea6f017fa2cf73b36959b456c564dc0e57da239cab1d5fb69233967",
    ),
)


def corpus_lines(kind: str, raw: bytes) -> Iterator[bytes]:
    """Yield one JSON line per raw line (`id TAB mean rating TAB text`, CRLF, UTF-8).

    The text is kept byte for byte: blanks at its ends and sentences that occur twice too. Lines are
    cut at LF alone; `str.splitlines` would cut at characters that belong to a text.
    """
    for line in raw.removesuffix(b"\n").split(b"\n"):
        number, rating, text = line.removesuffix(b"\r").decode("utf-8", "strict").split("\t")
        row: dict[str, object] = {
            "id": f"{kind}-{number}",
            "text": text,
            "rating": float(rating),
            "kind": kind,
        }
        row["label"] = label_of(float(rating))
        yield json.dumps(row, ensure_ascii=False).encode() + b"\n"


def label_of(rating: float) -> str | None:
    """The side that people took on the whole; none at 0."""
    return None if rating == 0 else "positive" if rating > 0 else "negative"


def is_made(folder: Path) -> bool:
    return all(_sha256(folder / source.name) == source.sha256 for source in SOURCES)


def make_reviews(folder: Path = FOLDER) -> list[Path]:
    """Write the two corpus files into `folder`, or leave them alone when they are there and whole.

    Raises:
        RuntimeError: the package could not be fetched, or what came of it has another hash.
    """
    if not is_made(folder):
        folder.mkdir(parents=True, exist_ok=True)
        for source, raw in _raw_files().items():
            _write(folder / source.name, b"".join(corpus_lines(source.kind, raw)), source.sha256)
    return [folder / source.name for source in SOURCES]


def _sha256(path: Path) -> str | None:
    return hashlib.sha256(path.read_bytes()).hexdigest() if path.exists() else None


def _write(path: Path, content: bytes, sha256: str) -> None:
    found = hashlib.sha256(content).hexdigest()
    if found != sha256:
        raise RuntimeError(f"{path.name}: sha256 {found}, but {sha256} was expected")
    unfinished = path.with_suffix(".unfinished")
    unfinished.write_bytes(content)
    unfinished.replace(path)


def _raw_files() -> dict[Source, bytes]:
    with tarfile.open(fileobj=io.BytesIO(_fetch())) as sdist:
        archive = _member(sdist, ARCHIVE)
    with tarfile.open(fileobj=io.BytesIO(archive)) as inner:
        return {source: _member(inner, source.member) for source in SOURCES}


def _member(archive: tarfile.TarFile, name: str) -> bytes:
    member = archive.extractfile(name)
    assert member is not None, f"{name} is no file"
    return member.read()


def _fetch() -> bytes:
    """Return the source distribution, checked by pip against its hash.

    Without build isolation pip asks for the metadata with our own setuptools: nothing else is
    fetched or built.
    """
    return fetch_package(REQUIREMENT, "--no-build-isolation", "--no-binary", "vaderSentiment")


def main() -> None:
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else FOLDER
    if is_made(folder):
        print(f"reviews: {folder} is there")
        return
    print(f"reviews: fetching {SDIST} (2.5 MB) and making {folder} of it")
    make_reviews(folder)
    for source in SOURCES:
        print(f"reviews: {folder / source.name}, {source.rows:,} rows")


if __name__ == "__main__":
    main()
