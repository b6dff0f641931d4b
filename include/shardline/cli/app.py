"""The commands. Each parses what it was given and calls one function; errors go to `boundary`."""

from __future__ import annotations

import os
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from shardline.cli.screen import Screen
    from shardline.job import JobFile
    from shardline.plan import Plan
    from shardline.results.wish import Wish
    from shardline.settings import Settings
    from shardline.store import Store

app = typer.Typer(
    help="Run a language model over all your documents, and lose or double none.",
    add_completion=False,
    rich_markup_mode="markdown",
    context_settings={"help_option_names": ["-h", "--help"]},
)

JobPath = Annotated[Path, typer.Argument(metavar="JOBFILE", help="The YAML file of the job.")]
Job = Annotated[
    str, typer.Argument(metavar="JOB", help="A job's id, or its name: then its newest job.")
]
Root = Annotated[
    str | None,
    typer.Option(
        metavar="URI",
        help="Where jobs and tables live: a folder or s3://bucket/prefix. Default: SHARDLINE_ROOT.",
        show_default=False,
    ),
]
Partition = Annotated[
    str | None,
    typer.Option(
        metavar="DATE", help="The partition, for a corpus with {{ partition }} in its URI."
    ),
]
Set = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="FIELD=VALUE",
        help="Another value for a field of the job file, e.g. parameters.max_tokens=32. Repeatable.",
    ),
]
SampleRows = Annotated[
    int | None,
    typer.Option(
        "--sample", min=1, metavar="ROWS", help="Only so many documents, always the same."
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON instead of text.")]
Verbose = Annotated[bool, typer.Option("--verbose", "-v", help="Log every step, on stderr.")]
Workers = Annotated[
    int, typer.Option(min=1, max=64, help="Shards that run at the same time on this machine.")
]


@app.callback(invoke_without_command=True)
def shardline(
    context: typer.Context,
    verbose: Verbose = False,
    version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False,
) -> None:
    """Run a language model over all your documents, and lose or double none.

    Start with `shardline try JOBFILE`, then `shardline run JOBFILE`.
    """
    from shardline import __version__
    from shardline.cli.boundary import quiet_logs

    quiet_logs(verbose)
    if version:
        typer.echo(f"shardline {__version__}")
    elif context.invoked_subcommand is None:
        typer.echo(context.get_help())


@app.command()
def schema() -> None:
    """Print the JSON Schema of the job file, for editors.

    Example: `shardline schema > job.schema.json`
    """
    import json

    from shardline.job import JobFile

    typer.echo(json.dumps(JobFile.model_json_schema(), indent=2))


@app.command(name="try")
def try_(
    job_file: JobPath,
    rows: Annotated[int, typer.Option(min=1, max=1000, help="How many documents.")] = 10,
    partition: Partition = None,
    sets: Set = None,
) -> None:
    """Run a few documents and show questions and answers side by side. Publishes nothing.

    Example: `shardline try include/jobs/review_sentiment.yaml --rows 5`
    """
    from shardline.cli.try_job import try_job

    # whatever is wrong with a few rows is what this command is for: no limit stops it
    fields = {
        "corpus.sample": {"rows": rows, "seed": 0},
        "limits.max_rejected": 1,
        "limits.max_dead": 1,
    }
    try_job(_load(job_file, sets, fields), _settings(), partition, _screen())


@app.command()
def plan(
    job_file: JobPath,
    partition: Partition = None,
    sets: Set = None,
    exact: Annotated[
        bool, typer.Option("--exact", help="Read the whole corpus and cut its shards.")
    ] = False,
    root: Root = None,
    as_json: Json = False,
) -> None:
    """Say in seconds how many rows, documents and shards a job has. Runs no model.

    Example: `shardline plan include/jobs/review_sentiment.yaml`
    """
    from shardline.cli.plan_job import show_estimate, show_exact
    from shardline.runners.gpu.check import check_gpu_job

    job, settings = _load(job_file, sets), _settings()
    check_gpu_job(job, str(root or settings.root), os.environ)
    if exact:
        store = _store(root)
        show_exact(store, _plan(job, store, partition), _screen(), as_json=as_json)
    else:
        show_estimate(job, settings, partition, _screen(), as_json=as_json)


@app.command()
def run(
    job_file: JobPath,
    root: Root = None,
    partition: Partition = None,
    sets: Set = None,
    sample: SampleRows = None,
    force: Annotated[
        bool, typer.Option("--force", help="Publish although another job's data is current.")
    ] = False,
    workers: Workers = 1,
) -> None:
    """Run the whole job in this process and publish its results as a table.

    Ctrl-C drains: what is finished is committed, and the same command goes on from there.

    Example: `shardline run include/jobs/review_sentiment.yaml --set parameters.max_tokens=4`
    """
    from shardline.cli.run_job import run_job
    from shardline.cli.summary import show_published

    fields = {"corpus.sample.rows": sample} if sample else {}
    job, store, screen = _load(job_file, sets, fields), _store(root), _screen()
    planned = _plan(job, store, partition)
    run_job(store, planned, screen, force=force, workers=workers)
    show_published(store, planned, screen)


@app.command()
def resume(
    job: Job,
    root: Root = None,
    force: Annotated[
        bool, typer.Option("--force", help="Publish although another job's data is current.")
    ] = False,
    workers: Workers = 1,
) -> None:
    """Go on with a job that was stopped, from what is committed.

    Example: `shardline resume review-sentiment`
    """
    from shardline.cli.run_job import run_job
    from shardline.cli.summary import show_published

    store, planned = _job(job, root)
    screen = _screen()
    run_job(store, planned, screen, force=force, workers=workers)
    show_published(store, planned, screen)


@app.command()
def replay(
    job: Job,
    reasons: Annotated[
        list[str] | None,
        typer.Option(
            "--reason",
            metavar="REASON",
            help="Dead letters of this reason only. Repeatable. Default: all that may do better, and "
            "with other settings all there are.",
        ),
    ] = None,
    sets: Set = None,
    abandon: Annotated[
        bool, typer.Option("--abandon", help="Give up the replay that is open, and run nothing.")
    ] = False,
    root: Root = None,
    workers: Workers = 1,
) -> None:
    """Run a job's dead letters again and publish the whole job anew, with what has a result now.

    `--set` changes how they run: parameters, model, engine arguments, shard sizes, limits.

    Example: `shardline replay reviews --reason truncated --set parameters.max_tokens=200`
    """
    from shardline.cli.replay_job import give_up, replay_job

    store, planned = _job(job, root)
    if abandon:
        give_up(store, planned, _screen())
    else:
        replay_job(store, planned, _wish(reasons, sets), _screen(), workers=workers)


@app.command()
def cancel(job: Job, root: Root = None) -> None:
    """Ask every worker of a job to stop; what is committed stays.

    Example: `shardline cancel review-sentiment`
    """
    from shardline.errors import JobNotReady
    from shardline.runners.generations import cancel_generation, current_generation

    store, planned = _job(job, root)
    generation = current_generation(store, planned.job_id)
    if not generation:
        raise JobNotReady(
            f"job {planned.job_id}: it was never started, so there is nothing to cancel"
        )
    cancel_generation(store, planned.job_id, generation, "shardline cancel")
    typer.echo(f"job {planned.job_id}: workers stop at their next segment, within a minute")


@app.command()
def status(job: Job, root: Root = None, as_json: Json = False) -> None:
    """Say how far a job is: shards, rows, speed, time left.

    Example: `shardline status review-sentiment`
    """
    from shardline.cli.look import show_status

    show_status(*_job(job, root), datetime.now(UTC), _screen(), as_json=as_json)


@app.command()
def jobs(root: Root = None, as_json: Json = False) -> None:
    """List the jobs below the root, the newest first.

    Example: `shardline jobs`
    """
    from shardline.cli.look import show_jobs

    show_jobs(_store(root), datetime.now(UTC), _screen(), as_json=as_json)


@app.command()
def verify(job: Job, root: Root = None) -> None:
    """Count the law again from the files: every row read has exactly one end.

    Example: `shardline verify review-sentiment`
    """
    from shardline.cli.look import show_verification

    show_verification(*_job(job, root), _screen())


@app.command()
def files(
    name: Annotated[str, typer.Argument(metavar="NAME", help="A published table (a job's name).")],
    partition: Partition = None,
    version: Annotated[
        int | None, typer.Option(min=0, help="An earlier version of the table.")
    ] = None,
    root: Root = None,
) -> None:
    """Print the current files of a published table, one a line.

    Example: `duckdb -c "FROM read_parquet([$(shardline files reviews | sed "s/.*/'&'/" | paste -sd,)])"`
    """
    from shardline.cli.look import table_files
    from shardline.cli.screen import print_lines

    print_lines(table_files(_store(root), name, partition, version))


@app.command()
def report(
    job: Job,
    root: Root = None,
    open_: Annotated[bool, typer.Option("--open/--no-open", help="Open it in a browser.")] = False,
) -> None:
    """Write the report of a job again and print where it is.

    Example: `shardline report review-sentiment --open`
    """
    from shardline.cli.summary import shown_path
    from shardline.report.report_job import report_job

    store, planned = _job(job, root)
    report_job(store, planned)
    where = shown_path(store, planned.layout.report_html)
    typer.echo(where)
    if open_:
        typer.launch(where)


@app.command(name="dead-letters")
def dead_letters(job: Job, root: Root = None) -> None:
    """Print the documents without a result, one JSON object a line.

    Example: `shardline dead-letters review-sentiment | jq -r .reason | sort | uniq -c`
    """
    from shardline.cli.look import dead_letter_hint, dead_letter_lines
    from shardline.cli.screen import print_lines

    store, planned = _job(job, root)
    print_lines(dead_letter_lines(store, planned))
    if hint := dead_letter_hint(store, planned):
        typer.echo(f"{hint} runs them again", err=True)


@app.command()
def rejected(job: Job, root: Root = None) -> None:
    """Print the rows that are no documents, one JSON object a line.

    Example: `shardline rejected review-sentiment | head`
    """
    from shardline.cli.look import rejected_lines
    from shardline.cli.screen import print_lines

    print_lines(rejected_lines(*_job(job, root)))


def _wish(reasons: list[str] | None, sets: list[str] | None) -> Wish:
    from shardline.cli.find import parse_overrides
    from shardline.results.wish import Wish

    return Wish(tuple(reasons or ()), parse_overrides(sets or []), Path.cwd())


def _settings() -> Settings:
    from shardline.settings import Settings

    return Settings()


def _screen() -> Screen:
    from shardline.cli.screen import Screen

    return Screen()


def _store(root: str | None) -> Store:
    from shardline.store import open_store

    return open_store(root or _settings().root)


def _job(job: str, root: str | None) -> tuple[Store, Plan]:
    from shardline.cli.find import find_job

    store = _store(root)
    return store, find_job(store, job)


def _load(
    path: Path, sets: list[str] | None, fields: Mapping[str, object] | None = None
) -> JobFile:
    from shardline.cli.find import parse_overrides
    from shardline.job_reader import load_job

    return load_job(path, {**parse_overrides(sets or []), **(fields or {})})


def _plan(job: JobFile, store: Store, partition: str | None) -> Plan:
    from shardline.corpus.plan_job import plan_job

    return plan_job(
        job, store=store, settings=_settings(), partition=partition, now=datetime.now(UTC)
    )
