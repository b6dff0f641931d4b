"""What a job of the demo's has published, and proof that it did what it says."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from deploy.embedded.environment import PROJECT
from samples import reviews

if TYPE_CHECKING:
    from shardline.plan import Plan
    from shardline.results.publish import Publication
    from shardline.rows import Attempt
    from shardline.store import Store

SAMPLE_ROWS = 8
CORPUS = str(PROJECT / reviews.FOLDER / "*.jsonl")


class Agreement(NamedTuple):
    """Rows with a prediction and a rating that leans to a side; of them: equal, rated positive."""

    rated: int
    right: int
    positive: int


def open_job(job_id: str) -> tuple[Store, Plan]:
    from shardline.plan import read_plan
    from shardline.settings import Settings
    from shardline.store import open_store

    store = open_store(Settings().root)
    return store, read_plan(store, job_id)


def show_outcome(job_id: str, copies: Path | None = None) -> None:
    """Print rows of the published table, the law's figures, how often the model was right, and where
    the shards ran.

    `copies` is a folder for the table's files and the report, where the store ends with the demo.
    """
    from shardline.results.files import published_files

    store, plan = open_job(job_id)
    table = plan.job_file.table
    files = published_files(store, table)
    publication = publication_of(store, plan)
    with tempfile.TemporaryDirectory(prefix="shardline-demo-") as scratch:
        on_disk = _on_disk(store, files, copies or Path(scratch))
        _print_rows(on_disk)
        _print_law(publication)
        _print_agreement(on_disk)
    _print_attempts(store, plan)
    report = publication.links["report"]
    if copies is None:
        print(f"\ndataset   {len(files)} files: .venv/bin/shardline files {table}")
    else:
        print(f"\ndataset   {len(files)} files, copied to {copies}")
        (report,) = _on_disk(store, [report], copies)
    print(f"report    {report}")


def publication_of(store: Store, plan: Plan) -> Publication:
    """What a job that succeeded has published."""
    from shardline.results.publish import current_publication

    publication = current_publication(store, plan.job_file.table, plan.partition)
    assert publication is not None, "the run succeeded, so its table is published"
    return publication


def _on_disk(store: Store, files: list[str], folder: Path) -> list[str]:
    """Paths of the files or of copies: for s3:// DuckDB would download an extension first."""
    folder.mkdir(parents=True, exist_ok=True)
    paths = []
    for file in files:
        path = Path(file)
        if "://" in file:
            path = folder / path.name
            path.write_bytes(store.read(file.removeprefix(f"{store.uri}/")))
        paths.append(str(path))
    return paths


def _print_rows(files: list[str]) -> None:
    sample = f"select output, rating, text from labelled using sample {SAMPLE_ROWS}"
    rows = _query(sample, files, CORPUS)
    print(f"\n{'output':10} {'people':>6}  text")
    for output, rating, text in rows:
        print(f"{output or '-':10} {rating:+6.2f}  {text if len(text) < 80 else text[:79] + '…'}")


def _print_law(publication: Publication) -> None:
    law = publication.law
    print(
        f"\nthe law   {law.rows_read:,} rows read = {law.documents:,} documents + "
        f"{law.rejected:,} rejected rows + {law.left_out:,} left out\n"
        f"          {law.documents:,} documents = {law.results:,} results + "
        f"{law.duplicates:,} duplicates + {law.dead_letters:,} dead letters"
    )


def _print_agreement(files: list[str]) -> None:
    found = agreement(files, CORPUS)
    if found.rated:
        print(
            f"\nthe model agrees with people on {found.right:,} of {found.rated:,} rated rows: "
            f"{found.right / found.rated:.1%} (always giving the commoner answer: "
            f"{max(found.positive, found.rated - found.positive) / found.rated:.1%})"
        )


def _print_attempts(store: Store, plan: Plan) -> None:
    from shardline.attempts import read_attempts
    from shardline.shards.manifest import read_shards

    shards = [entry.shard for entry in read_shards(store, plan)]
    attempts = [a for shard in shards for a in read_attempts(store, plan.layout, shard)]
    print()
    for attempt in attempts:
        print(attempt_line(attempt))
    if pods := [attempt for attempt in attempts if attempt.pod_uid]:
        nodes = ", ".join(sorted({str(attempt.node) for attempt in pods}))
        print(f"pods      {len(pods)}, on {nodes}")


def attempt_line(attempt: Attempt) -> str:
    """Where an attempt ran, how it ended, and what it did itself."""
    here = f"{attempt.host}, pid {attempt.pid}"
    place = f"pod {attempt.host} on {attempt.node}" if attempt.pod_uid else here
    resumed = f"{attempt.resumed_rows} rows resumed, " if attempt.resumed_rows else ""
    started = f"engine ready after {attempt.seconds.start:.0f} s"
    end = attempt.end or "no end recorded"
    return f"{attempt.shard}  {end}: {resumed}{attempt.counts.results} results, {started}; {place}"


def agreement(files: list[str], corpus: str) -> Agreement:
    """Compare each prediction with the sign of the mean human rating; 0 has none."""
    query = """
        select count(*), count(*) filter ((output = 'positive') = (rating > 0)),
               count(*) filter (rating > 0)
        from labelled where output in ('positive', 'negative') and rating <> 0
    """
    return Agreement(*_query(query, files, corpus)[0])


def _query(query: str, files: list[str], corpus: str) -> list[tuple[Any, ...]]:
    """Ask of the published rows, each beside its text and rating from the corpus."""
    import duckdb

    labelled = """
        with labelled as (
            select p.output, c.rating, c.text
            from read_parquet($files) p join read_json($corpus) c on p.document_id = c.id
        )
    """
    with duckdb.connect() as connection:
        asked = connection.execute(labelled + query, {"files": files, "corpus": corpus})
        return list(asked.fetchall())
