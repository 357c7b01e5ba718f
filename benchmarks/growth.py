"""Measures how the database grows over a long run, with and without retention.

python -m benchmarks.growth --steps 400       # writes benchmarks/results/growth.json

A run without a model, whose prompts are long enough that samples have some ten kilobytes. Sizes are
those of `pg_total_relation_size`: tables with their indexes and what is stored out of line.
"""

import argparse
import asyncio
import json
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path

import psycopg
from rich.console import Console
from rich.table import Table

from benchmarks.model_free_run import reported_steps
from benchmarks.table import PerformanceClaim, print_claims
from tests.support.model_free.experiment import experiment_plan, start_experiment
from tests.support.model_free.stack import model_free_stack
from trinity.config.plan.stage_plan import ExperimentPlan
from trinity.security.secret_files import SecretFiles

RESULTS = Path(__file__).parent / "results" / "growth.json"
PROMPT_CHARACTERS = 2_000
BATCH_SIZE, REPEAT_TIMES = 8, 2
SAVE_INTERVAL, KEPT_CHECKPOINTS = 5, 2
NUM_TASKS = 64
NUM_LOOKS = 10
SIZES = """
    SELECT relname, pg_total_relation_size(pg_class.oid) FROM pg_class
    JOIN pg_namespace ON pg_namespace.oid = relnamespace
    WHERE nspname = 'buffer' AND relkind = 'r'
"""
CONTENTS, BOUNDED = "payload", ("commit_report", "dead_letter", "blob", "segment", "checkpoint")
GIVEN = ("task", "taskset", "taskset_upload", "stage", "stage_taskset", "alembic_version")


@dataclass(frozen=True, slots=True)
class Look:
    """Bytes after a train step."""

    step: int
    contents: int
    """Of samples: what retention is about."""
    bounded: int
    """Reports, letters, blobs: forgotten by age or number."""
    given: int
    """Tasks and the stage: as large as they were given."""
    lineage: int
    """What became of every sample, run, batch and step: it stays, by design."""
    num_partitions: int


def plan_of(root: Path, *, steps: int, keep_steps: int | None) -> ExperimentPlan:
    """The run, whose samples are large."""
    tasks = root / "long.jsonl"
    root.mkdir(parents=True, exist_ok=True)
    rows = [{"prompt": f"{i}: ".ljust(PROMPT_CHARACTERS, "+")} for i in range(NUM_TASKS)]
    tasks.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return experiment_plan(
        root,
        name=f"keep-{keep_steps}",
        model={"max_prompt_tokens": 2 * PROMPT_CHARACTERS},
        buffer={
            "batch_size": BATCH_SIZE,
            "total_steps": steps,
            "keep_steps": keep_steps,
            "explorer_input": {"taskset": {"path": str(tasks)}},
        },
        trainer={"save_interval": SAVE_INTERVAL, "max_checkpoints_to_keep": KEPT_CHECKPOINTS},
    )


async def grow(plan: ExperimentPlan, *, steps: int, segment_rows: int) -> list[Look]:
    """Run it to its end; what is stored after each part of the steps."""
    settings = {"TRINITY_BUFFER_SEGMENT_MAX_ROWS": str(segment_rows)}
    async with model_free_stack(plan.job_path, environment={"buffer": settings}) as stack:
        secrets = SecretFiles(plan.job_path / "infra" / "secrets").folder
        dsn = (secrets / "buffer-postgres-dsn").read_text().strip()
        experiment = await start_experiment(stack.addresses.synchronizer, plan)
        looks: list[Look] = []
        every = max(1, steps // NUM_LOOKS)
        async for step in reported_steps(stack.addresses.buffer, plan, experiment.id):
            if step % every == 0:
                looks.append(await asyncio.to_thread(_look, dsn, step))
            if step == steps:
                break
        return looks


def _look(dsn: str, step: int) -> Look:
    with psycopg.connect(dsn) as connection:
        sizes = {str(name): int(size) for name, size in connection.execute(SIZES).fetchall()}
    contents = {name: size for name, size in sizes.items() if name.startswith(CONTENTS)}
    bounded = sum(sizes[name] for name in BOUNDED)
    given = sum(size for name, size in sizes.items() if name in GIVEN)
    return Look(
        step=step,
        contents=sum(contents.values()),
        bounded=bounded,
        given=given,
        lineage=sum(sizes.values()) - sum(contents.values()) - bounded - given,
        num_partitions=len(contents),
    )


def claims_of(kept: list[Look], everything: list[Look]) -> list[PerformanceClaim]:
    """Returns the claims: contents stay as they are while steps go by, and other tables grow."""
    middle = len(kept) // 2
    before, after = kept[1:middle], kept[middle:]
    grown = max(look.contents for look in after) / max(look.contents for look in before)
    linear = everything[-1].contents / everything[middle - 1].contents
    first, last = kept[0], kept[-1]
    samples = (last.step - first.step) * BATCH_SIZE * REPEAT_TIMES
    lineage = (last.lineage - first.lineage) / samples / 1e3
    left = last.contents / everything[-1].contents
    return [
        PerformanceClaim("contents, second half over first half of the run", grown, 1.3, "<="),
        PerformanceClaim("the same where everything is kept", linear, 1.6, ">="),
        PerformanceClaim("kept contents over all contents, at the end", left, 0.2, "<="),
        PerformanceClaim("lineage that stays, kilobytes a sample", lineage, 4.0, "<="),
    ]


def main() -> None:
    """Both runs, the table, the claims, the committed figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=400)
    steps = parser.parse_args().steps
    rows = SAVE_INTERVAL * BATCH_SIZE * REPEAT_TIMES
    with tempfile.TemporaryDirectory(prefix="trinity-growth-") as folder:
        looks = {
            name: asyncio.run(
                grow(
                    plan_of(Path(folder) / name, steps=steps, keep_steps=keep_steps),
                    steps=steps,
                    segment_rows=rows,
                )
            )
            for name, keep_steps in (("kept", 0), ("everything", None))
        }
    _print(looks["kept"], looks["everything"])
    claims = claims_of(looks["kept"], looks["everything"])
    print_claims(claims)
    found = {
        "steps": steps,
        "samples_a_step": BATCH_SIZE * REPEAT_TIMES,
        "looks": {name: [asdict(look) for look in own] for name, own in looks.items()},
        "claims": [claim.as_json() for claim in claims],
    }
    RESULTS.write_text(json.dumps(found, indent=1) + "\n")


def _print(kept: list[Look], everything: list[Look]) -> None:
    table = Table(
        "step", "contents", "partitions", "all contents", "reports", "tasks, stage", "lineage",
        title="megabytes, with `keep_steps: 0` (all contents: without)",
    )  # fmt: skip
    for look, other in zip(kept, everything, strict=True):
        sizes = (look.bounded, look.given, look.lineage)
        table.add_row(
            str(look.step),
            f"{look.contents / 1e6:.1f}",
            str(look.num_partitions),
            f"{other.contents / 1e6:.1f}",
            *(f"{size / 1e6:.2f}" for size in sizes),
        )
    Console().print(table)


if __name__ == "__main__":
    main()
