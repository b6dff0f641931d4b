"""A report with every figure, as a job with some bad luck leaves it."""

from __future__ import annotations

from typing import Any

import msgspec

from shardline.report.figures import (
    Agreement,
    Answer,
    DeadExample,
    DeadFigures,
    Histogram,
    InputFigures,
    JobFacts,
    PublishedFigures,
    RejectedExample,
    RejectedFigures,
    Report,
    Sample,
    ShardFigures,
    Span,
    TokenFigures,
    Trouble,
    ValidationFigures,
    WorkFigures,
)
from shardline.rows import EngineMetrics, Law, Seconds


def make_report(**changes: Any) -> Report:
    """A published job of 10,000 rows."""
    return msgspec.structs.replace(_REPORT, **changes)


_SPANS = [
    Span(
        shard=f"shard-{i:05d}-000",
        attempt=f"a{i}",
        start_s=(i % 2) * 2.0 + (i // 2) * 61.0,
        end_s=(i % 2) * 2.0 + (i // 2) * 61.0 + 55.0 - i if i != 3 else None,
        end="drained" if i == 2 else "engine_failed" if i == 4 else None if i == 3 else "done",
        rows=900,
    )
    for i in range(10)
] + [
    Span("shard-00002-000", "b2", 300.0, 330.0, "done", 400),
    Span("shard-00003-000", "b3", 305.0, 340.0, "done", 500),
    Span("shard-00004-000", "b4", 310.0, 352.0, "done", 800),
]

_REPORT = Report(
    made_at="2026-11-28T12:10:07.000+00:00",
    state="published",
    headline="9,552 rows published: 9,012 results and 540 duplicates; 12 dead letters.",
    next_step="",
    job=JobFacts(
        job_id="movie-sentiment-2026-11-28-0a1b2c3d",
        name="movie-sentiment",
        owner="support-data",
        table="movie-sentiment",
        table_uri="file:///data/published/movie-sentiment",
        partition="2026-11-28",
        run_on="local",
        engine="vllm",
        model="HuggingFaceTB/SmolLM2-135M-Instruct",
        model_commit="7e27bd9f95328f0f3b08261d1252705110c806f8",
        output_form="choices",
        planned_at="2026-11-28T12:00:00.000+00:00",
        finished_at="2026-11-28T12:09:30.000+00:00",
        wall_s=352.0,
        shardline_version="0.1.0",
        job_file={
            "name": "movie-sentiment",
            "messages": [{"role": "user", "content": "Is this good or bad?\n{{ text }}"}],
            "output": {"choices": ["positive", "negative"]},
        },
    ),
    law=Law(10_000, 9_564, 36, 400, 9_012, 540, 12),
    law_differences=[],
    input=InputFigures(3, 13_400_000, {"hidden": 2}, ["_SUCCESS", ".part-0.crc"]),
    shards=ShardFigures(
        10,
        10,
        9_024,
        14_700_000,
        Histogram(
            [200.0 * i for i in range(21)],
            [
                30,
                410,
                980,
                1600,
                1410,
                1200,
                900,
                702,
                500,
                400,
                300,
                200,
                130,
                90,
                60,
                40,
                30,
                20,
                12,
                10,
            ],
        ),
    ),
    work=WorkFigures(
        attempts=13,
        by_end={"done": 10, "drained": 1, "engine_failed": 1, "vanished": 1},
        seconds=Seconds(start=61.0, useful=402.0, tail=38.0, stall=12.0, restart=9.0, drain=4.2),
        rows=9_100,
        prompt_tokens=2_900_000,
        completion_tokens=31_000,
        engine_restarts=2,
        rows_per_s=25.6,
        completion_tokens_per_s=88.1,
        metrics=EngineMetrics(
            mean_running=57.2,
            max_num_seqs=64,
            kv_cache_usage=0.41,
            preemptions=3,
            prefix_cache_queries=2_900_000,
            prefix_cache_hits=1_102_000,
            engine_steps=30_100,
            peak_rss_mb=3210,
        ),
        spans=_SPANS,
        hosts=1,
        troubles=[Trouble("engine_failed", "the engine did not start: no space left", 1, "s", "a")],
    ),
    tokens=TokenFigures(
        2_800_000,
        30_100,
        9_012,
        {"stop": 8_990, "length": 22},
        Histogram([float(i) for i in range(11)], [0, 12, 4100, 3900, 600, 250, 100, 30, 12, 8]),
    ),
    dead=[
        DeadFigures(
            "engine_killer",
            "The request ends the engine, alone and twice.",
            True,
            2,
            [
                DeadExample(
                    "d17", "part-0.jsonl", 9, "ab" * 16, "the engine died with this request alone"
                )
            ],
        ),
        DeadFigures(
            "too_long",
            "The prompt exceeds the model's context length.",
            False,
            10,
            [
                DeadExample(
                    "d99", "part-1.jsonl", 12, "cd" * 16, "9,120 tokens exceed max_model_len 8,192"
                )
            ],
        ),
    ],
    dead_total=12,
    rejected=[
        RejectedFigures(
            "bad_json",
            "The line is not exactly one JSON value by RFC 8259.",
            30,
            [RejectedExample("part-0.jsonl", 17, "line 1, column 4: expected a value")],
        ),
        RejectedFigures(
            "no_text",
            "A column that a message needs is missing or null.",
            6,
            [RejectedExample("part-1.jsonl", 4, "text")],
        ),
    ],
    answers=[Answer("positive", 5_010), Answer("negative", 4_542)],
    answers_other=0,
    agreement=Agreement(
        "label",
        9_552,
        8_120,
        ["negative", "positive"],
        ["negative", "positive"],
        [[3_900, 790], [642, 4_220]],
    ),
    samples=[
        Sample(
            "d1",
            "part-0.jsonl",
            1,
            "A film of rare warmth, and never sentimental.\nI left smiling.",
            "positive",
            "stop",
            61,
            3,
            "positive",
        ),
        Sample(
            "d2",
            "part-0.jsonl",
            2,
            "Two hours that I will not get back.",
            "positive",
            "length",
            58,
            3,
            "negative",
        ),
    ],
    published=PublishedFigures(9_552, 10, 3_100_000, True),
    validation=ValidationFigures(
        True, ["output is one of the choices", "the law holds"], "data_docs/index.html"
    ),
)
