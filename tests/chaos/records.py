"""Reads what is on record of an experiment into a snapshot."""

import math
from collections import defaultdict
from collections.abc import Container, Mapping, Sequence
from pathlib import Path
from typing import Any

import psycopg
from psycopg.rows import dict_row

from services.buffer.domain.operators import COPIED
from services.buffer.domain.stage import parse_plan
from services.buffer.store.experiences import CODEC
from tests.chaos import snapshot as s
from tests.chaos.folder import FaultsFolder
from tests.chaos.journals import BATCHES, LOADS, TOLD, is_intact
from tests.chaos.measured import due_versions
from tests.chaos.replayed import rules_of
from tests.chaos.visits import read_visit

Row = Mapping[str, Any]
OF_EXPERIMENT = "WHERE experiment_id = %s"


def read_snapshot(
    *,
    buffer_dsn: str,
    synchronizer_dsn: str,
    folder: FaultsFolder,
    experiment_id: str,
    expected_weights: str,
) -> s.Snapshot:
    """All of an experiment with one stage; nothing may work on it meanwhile."""
    with psycopg.connect(buffer_dsn, row_factory=dict_row) as connection:
        buffer = _Table(connection, experiment_id)
        published = _published(synchronizer_dsn, experiment_id)
        stage = buffer.rows("stage")[0]
        let_go = {one["segment_id"] for one in buffer.rows("segment") if one["retired_at"]}
        there = buffer.payload_ids()
        rows = buffer.rows("experience")
        samples = tuple(_sample(row, let_go, there) for row in rows)
        payloads = {one.id: one.payload_id for one in samples}
        return s.Snapshot(
            stage=_stage(stage, buffer.rows("stage_taskset")),
            assignments=tuple(_assignment(row) for row in buffer.rows("assignment")),
            runs=tuple(_run(row) for row in buffer.rows("run")),
            attempts=tuple(_attempt(row) for row in buffer.rows("run_attempt")),
            samples=samples,
            nobodys=tuple(sorted(there - {str(row["payload_id"]) for row in rows})),
            batches=_batches(buffer.rows("batch_item"), stage["line"], payloads),
            lives=tuple(
                s.Commit(what="life", number=0, incarnation=row["incarnation"], at=row["began_at"])
                for row in buffer.rows("incarnation")
            ),
            commits=_commits(buffer),
            recorded=tuple(_version(row, row["recorded_at"]) for row in buffer.rows("version")),
            published=published,
            checkpoints=tuple(
                _checkpoint(row) for row in buffer.rows("checkpoint") if row["is_kept"]
            ),
            told=tuple(_told(line) for line in folder.read(TOLD, experiment_id=experiment_id)),
            seen=tuple(_seen(line) for line in folder.read(BATCHES, experiment_id=experiment_id)),
            loads=_loads(folder, stage),
            visit=read_visit(connection, folder, experiment_id),
            evaluations=tuple(_evaluation(row) for row in buffer.rows("evaluation")),
            weights=_final_weights(published, stage["finished_step"]),
            expected_weights=expected_weights,
        )


class _Table:
    def __init__(self, connection: psycopg.Connection[dict[str, Any]], experiment_id: str) -> None:
        self._connection = connection
        self._experiment_id = experiment_id

    def rows(self, name: str) -> Sequence[Row]:
        """All rows of the experiment in a table."""
        query = f"SELECT * FROM {name} {OF_EXPERIMENT}"
        return self._connection.execute(query, [self._experiment_id]).fetchall()

    def payload_ids(self) -> set[str]:
        """Contents of samples that are there."""
        query = f"SELECT payload_id FROM payload {OF_EXPERIMENT} AND codec = %s"
        rows = self._connection.execute(query, [self._experiment_id, CODEC])
        return {str(row["payload_id"]) for row in rows}


def _published(dsn: str, experiment_id: str) -> tuple[s.Version, ...]:
    with psycopg.connect(dsn, row_factory=dict_row) as connection:
        rows = _Table(connection, experiment_id).rows("version")
    return tuple(_version(row, row["published_at"]) for row in rows)


def _stage(row: Row, tasksets: Sequence[Row]) -> s.StageRecord:
    plan = parse_plan(row["plan"])
    return s.StageRecord(
        state=row["state"],
        reason=row["reason"],
        total_train_steps=row["total_train_steps"],
        trained_step=row["trained_step"],
        train_batch_size=plan.train_batch_size,
        num_expert_rows=plan.num_expert_rows,
        is_ordered=not plan.is_asynchronous,
        replay=rules_of(plan, row["total_train_steps"]),
        eval_tasks={one["name"]: one["num_rows"] for one in tasksets if one["kind"] == "eval"},
        due_versions=due_versions(plan, row["total_train_steps"]),
    )


def _assignment(row: Row) -> s.Assignment:
    return s.Assignment(
        id=str(row["assignment_id"]),
        explore_step=row["explore_step"],
        position=row["position"],
        state=row["state"],
        required_version=row["required_version"],
        repeat_times=row["repeat_times"],
        kind=row["kind"],
        taskset=row["taskset"],
    )


def _evaluation(row: Row) -> s.Evaluation:
    rewards = [one["mean"] for one in row["figures"] if one["name"] == "reward"]
    return s.Evaluation(
        version=row["version"],
        taskset=row["taskset"],
        state=row["state"],
        num_tasks=row["num_tasks"],
        num_failed=row["num_failed"],
        reward=rewards[0] if rewards else math.nan,
    )


def _run(row: Row) -> s.Run:
    return s.Run(assignment_id=str(row["assignment_id"]), run=row["run"], state=row["state"])


def _attempt(row: Row) -> s.Attempt:
    return s.Attempt(
        assignment_id=str(row["assignment_id"]),
        run=row["run"],
        attempt=row["attempt"],
        state=row["state"],
    )


def _sample(row: Row, let_go: Container[int], there: Container[str]) -> s.Sample:
    """A content that was written anew with its reward is still the sample's that it was before."""
    return s.Sample(
        id=str(row["experience_id"]),
        assignment_id=str(row["assignment_id"]),
        explore_step=row["explore_step"],
        position=row["position"],
        run=row["run"],
        attempt=row["attempt"],
        revision=row["revision"],
        parent_id=str(row["parent_id"]) if row["parent_id"] else None,
        payload_id=str(row["parent_id"] or row["experience_id"]),
        reward=row["reward"],
        has_content=str(row["payload_id"]) in there,
        is_let_go=row["segment_id"] in let_go,
        state=row["state"],
        reason=row["reason"],
        is_replaced=row["reason"].endswith(COPIED),
        versions=(row["version_min"], row["version_max"]),
        content_hash=bytes(row["content_hash"]).hex(),
    )


def _batches(items: Sequence[Row], line: int, payloads: Mapping[str, str]) -> tuple[s.Batch, ...]:
    by_step: dict[int, list[Row]] = defaultdict(list)
    for item in sorted(items, key=lambda item: item["position"]):
        if item["line"] == line:
            by_step[item["step"]].append(item)
    return tuple(
        s.Batch(
            step=step,
            experience_ids=tuple(
                str(item["experience_id"]) for item in own if item["experience_id"]
            ),
            rows=tuple((_content(item, payloads), item["advantage"]) for item in own),
        )
        for step, own in sorted(by_step.items())
    )


def _content(item: Row, payloads: Mapping[str, str]) -> str:
    if item["experience_id"] is None:
        return f"{s.DATA}{item['row_index']}"
    return payloads[str(item["experience_id"])]


def _commits(buffer: _Table) -> tuple[s.Commit, ...]:
    tables = (
        ("report", "step_report", "step", "reported_at"),
        ("version", "version", "version", "recorded_at"),
        ("checkpoint", "checkpoint", "step", "committed_at"),
    )
    return tuple(
        s.Commit(what=what, number=row[number], incarnation=row["incarnation"], at=row[at])
        for what, table, number, at in tables
        for row in buffer.rows(table)
    )


def _version(row: Row, at: Any) -> s.Version:
    return s.Version(
        version=row["version"],
        incarnation=row["incarnation"],
        weights_root=bytes(row["weights_blake3"] or row["weights_sha256"]).hex(),
        manifest_sha256=bytes(row.get("manifest_sha256") or b"").hex(),
        at=at,
    )


def _checkpoint(row: Row) -> s.Checkpoint:
    return s.Checkpoint(
        step=row["step"],
        incarnation=row["incarnation"],
        is_intact=is_intact(Path(row["path"]), bytes(row["manifest_sha256"])),
    )


def _told(line: Row) -> s.Told:
    return s.Told(
        assignment_id=line["assignment_id"],
        run=line["run"],
        attempt=line["attempt"],
        fate=line["fate"],
        experience_ids=tuple(line["experience_ids"]),
    )


def _seen(line: Row) -> s.SeenBatch:
    return s.SeenBatch(
        step=line["step"],
        incarnation=line["incarnation"],
        rows=tuple((payload, advantage) for payload, advantage in line["rows"]),
    )


def _loads(folder: FaultsFolder, stage: Row) -> tuple[s.Load, ...]:
    """Those of this experiment, told by the directory that holds all it makes."""
    own = f"{Path(parse_plan(stage['plan']).model_path).parent}/"
    return tuple(
        s.Load(
            path=line["path"],
            manifest_sha256=line["manifest_sha256"],
            is_intact=line["is_intact"],
        )
        for line in folder.read(LOADS)
        if line["path"].startswith(own)
    )


def _final_weights(published: Sequence[s.Version], step: int | None) -> str:
    final = [one for one in published if one.version == step]
    return max(final, key=lambda one: one.incarnation).weights_root if final else ""
