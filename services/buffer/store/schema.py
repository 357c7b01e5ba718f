"""The tables of the schema `buffer`; keys of a stage's rows hold tenant, experiment and stage."""

from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import JSONB, TIMESTAMP

metadata = sa.MetaData(
    naming_convention={
        "pk": "%(table_name)s_pk",
        "uq": "%(table_name)s_%(column_0_N_name)s_uq",
        "ix": "%(table_name)s_%(column_0_N_name)s_ix",
    }
)

UUID = sa.Uuid(as_uuid=False)
TIME = TIMESTAMP(timezone=True)
NOW = sa.func.clock_timestamp()
STAGE_KEY = ("tenant", "experiment_id", "stage")
IS_OPEN = "state = ANY (ARRAY['pending'::text, 'leased'::text])"  # as Postgres reports it
HOT_UPDATE_ROOM = {"fillfactor": 50}
"""Free space in pages: an update that changes no indexed column then writes no index (HOT)."""


def _id_first_key(name: str) -> sa.PrimaryKeyConstraint:
    """Builds the primary key of rows that are looked up by id: the id first, then the stage."""
    return sa.PrimaryKeyConstraint(name, *STAGE_KEY)


def _moment(name: str) -> sa.Column[object]:
    return sa.Column(name, TIME, nullable=False, server_default=NOW)


def _bigint(name: str, default: int = 0) -> sa.Column[int]:
    return sa.Column(name, sa.BigInteger, nullable=False, server_default=str(default))


def _bigints(*names: str) -> list[sa.Column[int]]:
    return [_bigint(name) for name in names]


def _flag(name: str) -> sa.Column[bool]:
    return sa.Column(name, sa.Boolean, nullable=False, server_default=sa.false())


def _text(name: str) -> sa.Column[str]:
    return sa.Column(name, sa.Text, nullable=False, server_default="")


def _index(name: str, table: sa.Table, *columns: str, **options: Any) -> None:
    sa.Index(name, *(table.c[column] for column in columns), **options)


def _number_key(name: str) -> sa.Column[int]:
    return sa.Column(name, sa.BigInteger, primary_key=True, autoincrement=False)


def _text_key(name: str) -> sa.Column[str]:
    return sa.Column(name, sa.Text, primary_key=True)


def _of_stage(name: str, *parts: sa.schema.SchemaItem, **options: Any) -> sa.Table:
    experiment = sa.Column("experiment_id", UUID, primary_key=True)
    own = (_text_key("tenant"), experiment, _text_key("stage"))
    return sa.Table(name, metadata, *own, *parts, **options)


def _of_taskset(name: str, *parts: sa.schema.SchemaItem) -> sa.Table:
    taskset_id = sa.Column("taskset_id", UUID, primary_key=True)
    return sa.Table(name, metadata, _text_key("tenant"), taskset_id, *parts)


stage = _of_stage(  # A stage with its plan and its counters
    "stage",
    sa.Column("plan", sa.Text, nullable=False),
    _bigint("seed"),
    sa.Column("state", sa.Text, nullable=False),
    _text("reason"),
    *_bigints(
        "num_rows",
        "total_train_steps",
        "total_explore_steps",
        "explore_step",
        "num_drawn",
        "num_stale",
        "num_unfilled",
        "compared_step",
    ),
    _bigint("line", default=1),
    _bigint("incarnation"),
    sa.Column("published", sa.BigInteger),
    _bigint("step_version"),
    sa.Column("wants_version", sa.Boolean, server_default=sa.false(), nullable=False),
    *_bigints("recorded_step", "trained_step"),
    sa.Column("finished_step", sa.BigInteger),
    sa.Column("segment_id", sa.BigInteger, nullable=False),
    _moment("opened_at"),
    sa.Column("session_key", sa.LargeBinary),
)

stage_taskset = _of_stage(  # The tasksets that a stage takes tasks from
    "stage_taskset",
    _text_key("name"),
    sa.Column("taskset_id", UUID, nullable=False),
    sa.Column("kind", sa.Text, nullable=False),
    _bigint("num_rows"),
)

segment = _of_stage(  # A partition of `payload`, filled by one stage and dropped as a whole
    "segment",
    sa.Column("segment_id", sa.BigInteger, sa.Identity(), primary_key=True),
    *_bigints("num_rows", "num_bytes"),
    _moment("opened_at"),
    sa.Column("retired_at", TIME),
    sa.Column("removed_at", TIME),
    sa.UniqueConstraint("segment_id"),
)
_index(
    "segment_unremoved_ix",
    segment,
    *STAGE_KEY,
    "segment_id",
    postgresql_where=segment.c.removed_at.is_(None),
)

payload = _of_stage(  # Serialized samples, partitioned by segment
    "payload",
    _number_key("segment_id"),
    sa.Column("payload_id", UUID, primary_key=True),
    sa.Column("codec", sa.Text, nullable=False),
    sa.Column("schema_version", sa.Integer, nullable=False),
    sa.Column("body", sa.LargeBinary, nullable=False),
    postgresql_partition_by="LIST (segment_id)",
)

assignment = _of_stage(  # A task drawn for a stage, with its lease; `num_attempts` are reserved
    "assignment",
    sa.Column("assignment_id", UUID, primary_key=True),
    _id_first_key("assignment_id"),
    sa.Column("kind", sa.Text, nullable=False),
    sa.Column("taskset", sa.Text, nullable=False),
    *_bigints(
        "task_index",
        "explore_step",
        "position",
        "refill_round",
        "required_version",
        "repeat_times",
        "num_open_runs",
    ),
    sa.Column("state", sa.Text, nullable=False),
    _text("reason"),
    sa.Column("lease_token", UUID),
    _bigint("num_attempts"),
    sa.Column("leased_by", UUID),
    sa.Column("lease_until", TIME),
    _moment("opened_at"),
    *map(_flag, ("awaits_feedback", "numbers_calls")),
    # A lease changes no indexed column, so that its update writes no index entry.
    sa.Column("is_open", sa.Boolean, sa.Computed(IS_OPEN), nullable=False),
    sa.UniqueConstraint(*STAGE_KEY, "kind", "explore_step", "position", name="assignment_place_uq"),
    postgresql_with=HOT_UPDATE_ROOM,
)
_index(
    "assignment_feedback_ix",
    assignment,
    *STAGE_KEY,
    "explore_step",
    "position",
    postgresql_where=assignment.c.awaits_feedback,
)
_index(
    "assignment_open_ix",
    assignment,
    *(*STAGE_KEY, "kind", "explore_step", "position"),
    postgresql_where=assignment.c.is_open,
)

run = _of_stage(  # One repetition of an assignment's task
    "run",
    sa.Column("assignment_id", UUID, primary_key=True),
    sa.Column("run", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("state", sa.Text, nullable=False),
    _bigint("num_failed"),
    _text("reason"),
    postgresql_with=HOT_UPDATE_ROOM,
)

run_attempt = _of_stage(  # A result for a run; exactly one attempt wins
    "run_attempt",
    sa.Column("assignment_id", UUID, primary_key=True),
    sa.Column("run", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("attempt", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("producer", UUID, nullable=False),
    sa.Column("sequence", sa.BigInteger, nullable=False),
    sa.Column("state", sa.Text, nullable=False),
    _text("reason"),
    sa.Column("content_hash", sa.LargeBinary, nullable=False),
    sa.Column("metrics", JSONB, nullable=False),
    sa.Column("duration_seconds", sa.Float, nullable=False),
    _moment("received_at"),
    sa.UniqueConstraint("producer", "sequence"),
)
_index(
    "run_attempt_winner_uq",
    run_attempt,
    *STAGE_KEY,
    "assignment_id",
    "run",
    unique=True,
    postgresql_where=run_attempt.c.state == "won",
)

experience = _of_stage(  # Metadata of a sample, for decisions; its body is in `payload`
    "experience",
    sa.Column("experience_id", UUID, primary_key=True),
    _id_first_key("experience_id"),
    sa.Column("assignment_id", UUID, nullable=False),
    *_bigints("explore_step", "position", "run", "attempt", "step"),
    _text("suffix"),
    _bigint("revision"),
    sa.Column("parent_id", UUID),
    sa.Column("segment_id", sa.BigInteger, nullable=False),
    sa.Column("payload_id", UUID, nullable=False),
    sa.Column("state", sa.Text, nullable=False),
    _text("reason"),
    sa.Column("reward", sa.Float),
    sa.Column("advantage", sa.Float),
    *(sa.Column(name, sa.BigInteger) for name in ("version_min", "version_max")),
    *_bigints("num_tokens", "response_length"),
    sa.Column("finish_reason", sa.Text, nullable=False),
    sa.Column("metrics", JSONB, nullable=False),
    sa.Column("content_hash", sa.LargeBinary, nullable=False),
    sa.Column("ready_number", sa.BigInteger, sa.Identity(), nullable=False),
    _moment("created_at"),
    sa.Column("shaped_reward", sa.Float),
    _flag("is_masked"),
    sa.Column("turn_sha256", sa.LargeBinary),
)
_index(
    "experience_waiting_ix",
    experience,
    *(*STAGE_KEY, "state", "explore_step", "position", "run", "step", "suffix"),
    postgresql_where=experience.c.state.in_(["raw", "ready", "awaiting"]),
)
sa.Index("experience_number_ix", experience.c.ready_number, postgresql_using="brin")
_index(
    "experience_version_ix",
    experience,
    *("version_min", "version_max"),
    postgresql_using="brin",
    postgresql_with={"pages_per_range": 32, "autosummarize": "true"},
)
_index("experience_assignment_ix", experience, "assignment_id", *STAGE_KEY)

sample_change = _of_stage(  # Changes by people to a sample, with reasons
    "sample_change",
    sa.Column("experience_id", UUID, primary_key=True),
    sa.Column("number", sa.BigInteger, sa.Identity(), primary_key=True),
    sa.PrimaryKeyConstraint("experience_id", *STAGE_KEY, "number"),
    sa.Column("what", sa.Text, nullable=False),
    *map(_text, ("reason", "by")),
    _moment("at"),
)

pipeline_scope = _of_stage(  # A group of samples on its way through operators and advantages
    "pipeline_scope",
    sa.Column("assignment_id", UUID, primary_key=True),
    sa.Column("state", sa.Text, nullable=False),
    sa.Column("claim_token", UUID),
    sa.Column("claimed_until", TIME),
    _bigint("attempts"),
    _text("error"),
    _moment("opened_at"),
    *_bigints("explore_step", "position"),
    sa.Column("metrics", JSONB, nullable=False, server_default="{}"),
    sa.Column("batched_step", sa.BigInteger),
)
_index(
    "pipeline_scope_open_ix",
    pipeline_scope,
    *STAGE_KEY,
    "opened_at",
    postgresql_where=pipeline_scope.c.state.in_(["open", "claimed", "awaiting"]),
)
_index(
    "pipeline_scope_unreported_ix",
    pipeline_scope,
    *(*STAGE_KEY, "explore_step", "position"),
    postgresql_where=sa.and_(
        pipeline_scope.c.state == "done", pipeline_scope.c.batched_step.is_(None)
    ),
)

batch = _of_stage(  # A recorded batch: it never changes
    "batch",
    _number_key("line"),
    _number_key("step"),
    *_bigints("incarnation", "num_rows"),
    sa.Column("metrics", JSONB, nullable=False),
    _moment("composed_at"),
    *(sa.Column(name, sa.LargeBinary) for name in ("rows_sha256", "lineage_sha256")),
    _bigint("oldest_version"),
)

batch_item = _of_stage(  # One row of a batch: a sample, or a row of a taskset
    "batch_item",
    _number_key("line"),
    _number_key("step"),
    sa.Column("position", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("source", sa.Text, nullable=False),
    sa.Column("experience_id", UUID),
    sa.Column("taskset_id", UUID),
    sa.Column("row_index", sa.BigInteger),
    sa.Column("advantage", sa.Float, nullable=False),
    sa.Column("weight", sa.Float, nullable=False),
    sa.Column("mean_ratio", sa.Float),
    sa.Column("trained_advantage", sa.Float),
    *(sa.Column(f"token_{name}", sa.LargeBinary) for name in ("logprobs", "advantages")),
    sa.Column("row_sha256", sa.LargeBinary),
)
_index(
    "batch_item_experience_ix",
    batch_item,
    *STAGE_KEY,
    "experience_id",
    postgresql_where=batch_item.c.experience_id.is_not(None),
)

replay_pool = _of_stage(  # Samples that may be trained again
    "replay_pool",
    sa.Column("experience_id", UUID, primary_key=True),
)

incarnation = _of_stage(  # The lives of a stage's trainer; the newest one may write
    "incarnation",
    _number_key("incarnation"),
    sa.Column("trainer_id", UUID, nullable=False),
    _moment("began_at"),
)

version = _of_stage(  # Published weights by the life that made them
    "version",
    _number_key("version"),
    _number_key("incarnation"),
    sa.Column("line", sa.BigInteger, nullable=False),
    sa.Column("weights_sha256", sa.LargeBinary, nullable=False),
    sa.Column("weights_blake3", sa.LargeBinary, nullable=False, server_default=""),
    _moment("recorded_at"),
    sa.Column("lineage_sha256", sa.LargeBinary),
)

step_report = _of_stage(  # A trainer's metrics of a step
    "step_report",
    _number_key("line"),
    _number_key("step"),
    _number_key("incarnation"),
    sa.Column("metrics", JSONB, nullable=False),
    _moment("reported_at"),
)

checkpoint = _of_stage(  # A committed checkpoint; `told_*` name the commit that released it
    "checkpoint",
    _number_key("step"),
    _number_key("incarnation"),
    sa.Column("line", sa.BigInteger, nullable=False),
    sa.Column("path", sa.Text, nullable=False),
    sa.Column("manifest_sha256", sa.LargeBinary, nullable=False),
    sa.Column("is_kept", sa.Boolean, nullable=False),
    sa.Column("told_step", sa.BigInteger),
    sa.Column("told_incarnation", sa.BigInteger),
    _moment("committed_at"),
    sa.Column("lineage_sha256", sa.LargeBinary),
)

evaluation = _of_stage(  # The evaluation of a version on a taskset
    "evaluation",
    _number_key("version"),
    _text_key("taskset"),
    sa.Column("state", sa.Text, nullable=False),
    *_bigints("num_tasks", "num_failed"),
    sa.Column("figures", JSONB, nullable=False),
    _moment("opened_at"),
    sa.Column("done_at", TIME),
)

commit_report = sa.Table(  # The answer that a producer gets for a result
    "commit_report",
    metadata,
    sa.Column("producer", UUID, primary_key=True),
    _number_key("sequence"),
    sa.Column("number", sa.BigInteger, sa.Identity(), nullable=False),
    sa.Column("state", sa.Text, nullable=False),
    _text("reason"),
    _moment("reported_at"),
    sa.Index(None, "producer", "number"),
)

dead_letter = sa.Table(  # Results that cannot be stored
    "dead_letter",
    metadata,
    sa.Column("number", sa.BigInteger, sa.Identity(), primary_key=True),
    sa.Column("subject", sa.Text, nullable=False),
    sa.Column("producer", UUID),
    sa.Column("sequence", sa.BigInteger),
    sa.Column("reason", sa.Text, nullable=False),
    sa.Column("body", sa.LargeBinary, nullable=False),
    _moment("received_at"),
    sa.Index(None, "subject"),
)

blob = sa.Table(  # Parts of results that are too large for a message
    "blob",
    metadata,
    _text_key("tenant"),
    sa.Column("sha256", sa.LargeBinary, primary_key=True),
    _bigint("size"),
    sa.Column("body", sa.LargeBinary),
    _moment("stored_at"),
)
sa.Index("blob_waiting_index", blob.c.tenant, postgresql_where=blob.c.body.is_not(None))

progress = sa.Table(  # Events of an experiment that clients follow
    "progress",
    metadata,
    _text_key("tenant"),
    sa.Column("experiment_id", UUID, primary_key=True),
    _number_key("number"),
    sa.Column("stage", sa.Text, nullable=False),
    sa.Column("kind", sa.Text, nullable=False),
    sa.Column("body", JSONB, nullable=False),
    _moment("at"),
)
sa.Index(
    "progress_samples_index",
    progress.c.tenant,
    postgresql_where=progress.c.kind == sa.literal_column("'samples'"),
)
_index(
    "progress_changes_index",
    progress,
    *STAGE_KEY,
    postgresql_where=progress.c.kind == sa.literal_column("'changed'"),
)

taskset = _of_taskset(  # Tasks under one name, submitted by a client or read from a file
    "taskset",
    sa.Column("name", sa.Text),
    sa.Column("source", sa.Text),
    sa.Column("is_complete", sa.Boolean, nullable=False),
    *_bigints("num_rows", "num_bytes"),
    _moment("created_at"),
    _flag("is_queue"),
    sa.Column("pipeline", JSONB),
    sa.UniqueConstraint("tenant", "source"),
    sa.UniqueConstraint("tenant", "name"),
)
taskset_upload = sa.Table(  # One upload of a taskset, by request id; a repeated one goes on here
    "taskset_upload",
    metadata,
    _text_key("tenant"),
    sa.Column("request_id", UUID, primary_key=True),
    sa.Column("taskset_id", UUID, nullable=False),
    *_bigints("num_stored", "num_refused"),
    sa.Column("refused", JSONB, nullable=False, server_default="[]"),
    _flag("is_complete"),
    _moment("last_sent_at"),
    sa.Index(None, "tenant", "taskset_id"),
)
task = _of_taskset(  # One task as JSON, at its row of the taskset
    "task",
    _number_key("index"),
    sa.Column("body", sa.Text, nullable=False),
)
task_feature = _of_taskset(  # A number of every task that selectors read, as float64[num_rows]
    "task_feature",
    _text_key("name"),
    sa.Column("numbers", sa.LargeBinary, nullable=False),
)
task_origin = _of_taskset(  # Rows of the file that tasks of a pipeline came from, as int64
    "task_origin",
    sa.Column("first", sa.BigInteger, primary_key=True, autoincrement=False, server_default="0"),
    sa.Column("rows", sa.LargeBinary, nullable=False),
)
task_ranking = _of_stage(  # Row numbers in a learned order, as int64 (`domain/task_draws.py`)
    "task_ranking",
    _text_key("taskset"),
    sa.Column("rows", sa.LargeBinary, nullable=False),
)
task_beliefs = _of_stage(  # A learned selector's state, arrays by row (`domain/task_draws.py`)
    "task_beliefs",
    _text_key("taskset"),
    sa.Column("weak", sa.LargeBinary, nullable=False),
    sa.Column("strong", sa.LargeBinary, nullable=False),
    sa.Column("alpha", sa.LargeBinary, nullable=False),
    sa.Column("beta", sa.LargeBinary, nullable=False),
    sa.Column("capability", sa.Float),
    sa.Column("rho", sa.Float, nullable=False),
    _bigint("num_updates"),
)
