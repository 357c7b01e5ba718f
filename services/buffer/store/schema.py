"""The tables of the schema `buffer`; keys of a stage's rows hold tenant, experiment and stage."""

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import JSONB

from services.buffer.store import taskset_schema  # noqa: F401 - its tables belong to the metadata
from services.buffer.store.columns import (
    HOT_UPDATE_ROOM,
    STAGE_KEY,
    TIME,
    UUID,
    bigint,
    flag,
    id_first_key,
    moment,
    stage_key,
    text,
)
from services.buffer.store.columns import (
    metadata as metadata,
)

stage = sa.Table(  # A stage with its plan and its counters
    "stage",
    metadata,
    *stage_key(),
    sa.Column("plan", sa.Text, nullable=False),
    bigint("seed"),
    sa.Column("state", sa.Text, nullable=False),
    text("reason"),
    bigint("num_rows"),
    bigint("total_train_steps"),
    bigint("total_explore_steps"),
    bigint("explore_step"),
    bigint("num_drawn"),
    bigint("num_stale"),
    bigint("num_unfilled"),
    bigint("compared_step"),
    bigint("line", default=1),
    bigint("incarnation"),
    sa.Column("published", sa.BigInteger),
    bigint("step_version"),
    sa.Column("wants_version", sa.Boolean, server_default=sa.false(), nullable=False),
    bigint("recorded_step"),
    bigint("trained_step"),
    sa.Column("finished_step", sa.BigInteger),
    sa.Column("segment_id", sa.BigInteger, nullable=False),
    moment("opened_at"),
)

stage_taskset = sa.Table(  # The tasksets that a stage takes tasks from
    "stage_taskset",
    metadata,
    *stage_key(),
    sa.Column("name", sa.Text, primary_key=True),
    sa.Column("taskset_id", UUID, nullable=False),
    sa.Column("kind", sa.Text, nullable=False),
    bigint("num_rows"),
)

segment = sa.Table(  # A partition of `payload`, filled by one stage and dropped as a whole
    "segment",
    metadata,
    *stage_key(),
    sa.Column("segment_id", sa.BigInteger, sa.Identity(), primary_key=True),
    bigint("num_rows"),
    bigint("num_bytes"),
    moment("opened_at"),
    sa.Column("retired_at", TIME),
    sa.Column("removed_at", TIME),
    sa.UniqueConstraint("segment_id"),
)
sa.Index(
    "segment_unremoved_ix",
    *(segment.c[name] for name in (*STAGE_KEY, "segment_id")),
    postgresql_where=segment.c.removed_at.is_(None),
)

payload = sa.Table(  # Serialized samples, partitioned by segment
    "payload",
    metadata,
    *stage_key(),
    sa.Column("segment_id", sa.BigInteger, primary_key=True, autoincrement=False),
    sa.Column("payload_id", UUID, primary_key=True),
    sa.Column("codec", sa.Text, nullable=False),
    sa.Column("schema_version", sa.Integer, nullable=False),
    sa.Column("body", sa.LargeBinary, nullable=False),
    postgresql_partition_by="LIST (segment_id)",
)

IS_OPEN = "state = ANY (ARRAY['pending'::text, 'leased'::text])"
"""In the form in which Postgres reports the expression."""
assignment = sa.Table(  # A task drawn for a stage, with its lease; `num_attempts` are reserved
    "assignment",
    metadata,
    *stage_key(),
    sa.Column("assignment_id", UUID, primary_key=True),
    id_first_key("assignment_id"),
    sa.Column("kind", sa.Text, nullable=False),
    sa.Column("taskset", sa.Text, nullable=False),
    bigint("task_index"),
    bigint("explore_step"),
    bigint("position"),
    bigint("refill_round"),
    bigint("required_version"),
    bigint("repeat_times"),
    bigint("num_open_runs"),
    sa.Column("state", sa.Text, nullable=False),
    text("reason"),
    sa.Column("lease_token", UUID),
    bigint("num_attempts"),
    sa.Column("leased_by", UUID),
    sa.Column("lease_until", TIME),
    moment("opened_at"),
    flag("awaits_feedback"),
    # A lease changes no indexed column, so that its update writes no index entry.
    sa.Column("is_open", sa.Boolean, sa.Computed(IS_OPEN), nullable=False),
    sa.UniqueConstraint(*STAGE_KEY, "kind", "explore_step", "position", name="assignment_place_uq"),
    postgresql_with=HOT_UPDATE_ROOM,
)
sa.Index(
    "assignment_feedback_ix",
    *(assignment.c[name] for name in (*STAGE_KEY, "explore_step", "position")),
    postgresql_where=assignment.c.awaits_feedback,
)
sa.Index(
    "assignment_open_ix",
    *(assignment.c[name] for name in (*STAGE_KEY, "kind", "explore_step", "position")),
    postgresql_where=assignment.c.is_open,
)

run = sa.Table(  # One repetition of an assignment's task
    "run",
    metadata,
    *stage_key(),
    sa.Column("assignment_id", UUID, primary_key=True),
    sa.Column("run", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("state", sa.Text, nullable=False),
    bigint("num_failed"),
    text("reason"),
    postgresql_with=HOT_UPDATE_ROOM,
)

run_attempt = sa.Table(  # A result for a run; exactly one attempt wins
    "run_attempt",
    metadata,
    *stage_key(),
    sa.Column("assignment_id", UUID, primary_key=True),
    sa.Column("run", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("attempt", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("producer", UUID, nullable=False),
    sa.Column("sequence", sa.BigInteger, nullable=False),
    sa.Column("state", sa.Text, nullable=False),
    text("reason"),
    sa.Column("content_hash", sa.LargeBinary, nullable=False),
    sa.Column("metrics", JSONB, nullable=False),
    sa.Column("duration_seconds", sa.Float, nullable=False),
    moment("received_at"),
    sa.UniqueConstraint("producer", "sequence"),
)
sa.Index(
    "run_attempt_winner_uq",
    *(run_attempt.c[name] for name in (*STAGE_KEY, "assignment_id", "run")),
    unique=True,
    postgresql_where=run_attempt.c.state == "won",
)

experience = sa.Table(  # Metadata of a sample, for decisions; its body is in `payload`
    "experience",
    metadata,
    *stage_key(),
    sa.Column("experience_id", UUID, primary_key=True),
    id_first_key("experience_id"),
    sa.Column("assignment_id", UUID, nullable=False),
    bigint("explore_step"),
    bigint("position"),
    bigint("run"),
    bigint("attempt"),
    bigint("step"),
    text("suffix"),
    bigint("revision"),
    sa.Column("parent_id", UUID),
    sa.Column("segment_id", sa.BigInteger, nullable=False),
    sa.Column("payload_id", UUID, nullable=False),
    sa.Column("state", sa.Text, nullable=False),
    text("reason"),
    sa.Column("reward", sa.Float),
    sa.Column("advantage", sa.Float),
    sa.Column("version_min", sa.BigInteger),
    sa.Column("version_max", sa.BigInteger),
    bigint("num_tokens"),
    bigint("response_length"),
    sa.Column("finish_reason", sa.Text, nullable=False),
    sa.Column("metrics", JSONB, nullable=False),
    sa.Column("content_hash", sa.LargeBinary, nullable=False),
    sa.Column("ready_number", sa.BigInteger, sa.Identity(), nullable=False),
    moment("created_at"),
    sa.Column("shaped_reward", sa.Float),
    flag("is_masked"),
)
sa.Index(
    "experience_waiting_ix",
    *(
        experience.c[name]
        for name in (*STAGE_KEY, "state", "explore_step", "position", "run", "step", "suffix")
    ),
    postgresql_where=experience.c.state.in_(["raw", "ready", "awaiting"]),
)
sa.Index("experience_number_ix", experience.c.ready_number, postgresql_using="brin")
sa.Index(
    "experience_version_ix",
    *(experience.c[name] for name in ("version_min", "version_max")),
    postgresql_using="brin",
    postgresql_with={"pages_per_range": 32, "autosummarize": "true"},
)
sa.Index(
    "experience_assignment_ix", *(experience.c[name] for name in ("assignment_id", *STAGE_KEY))
)

sample_change = sa.Table(  # Changes by people to a sample, with reasons
    "sample_change",
    metadata,
    *stage_key(),
    sa.Column("experience_id", UUID, primary_key=True),
    sa.Column("number", sa.BigInteger, sa.Identity(), primary_key=True),
    sa.PrimaryKeyConstraint("experience_id", *STAGE_KEY, "number"),
    sa.Column("what", sa.Text, nullable=False),
    text("reason"),
    text("by"),
    moment("at"),
)

pipeline_scope = sa.Table(  # A group of samples on its way through operators and advantages
    "pipeline_scope",
    metadata,
    *stage_key(),
    sa.Column("assignment_id", UUID, primary_key=True),
    sa.Column("state", sa.Text, nullable=False),
    sa.Column("claim_token", UUID),
    sa.Column("claimed_until", TIME),
    bigint("attempts"),
    text("error"),
    moment("opened_at"),
    bigint("explore_step"),
    bigint("position"),
    sa.Column("metrics", JSONB, nullable=False, server_default="{}"),
    sa.Column("batched_step", sa.BigInteger),
)
sa.Index(
    "pipeline_scope_open_ix",
    *(pipeline_scope.c[name] for name in (*STAGE_KEY, "opened_at")),
    postgresql_where=pipeline_scope.c.state.in_(["open", "claimed", "awaiting"]),
)
sa.Index(
    "pipeline_scope_unreported_ix",
    *(pipeline_scope.c[name] for name in (*STAGE_KEY, "explore_step", "position")),
    postgresql_where=sa.and_(
        pipeline_scope.c.state == "done", pipeline_scope.c.batched_step.is_(None)
    ),
)

batch = sa.Table(  # A recorded batch: it never changes
    "batch",
    metadata,
    *stage_key(),
    sa.Column("line", sa.BigInteger, primary_key=True, autoincrement=False),
    sa.Column("step", sa.BigInteger, primary_key=True, autoincrement=False),
    bigint("incarnation"),
    bigint("num_rows"),
    sa.Column("metrics", JSONB, nullable=False),
    moment("composed_at"),
)

batch_item = sa.Table(  # One row of a batch: a sample, or a row of a taskset
    "batch_item",
    metadata,
    *stage_key(),
    sa.Column("line", sa.BigInteger, primary_key=True, autoincrement=False),
    sa.Column("step", sa.BigInteger, primary_key=True, autoincrement=False),
    sa.Column("position", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("source", sa.Text, nullable=False),
    sa.Column("experience_id", UUID),
    sa.Column("taskset_id", UUID),
    sa.Column("row_index", sa.BigInteger),
    sa.Column("advantage", sa.Float, nullable=False),
    sa.Column("weight", sa.Float, nullable=False),
    sa.Column("mean_ratio", sa.Float),
    sa.Column("trained_advantage", sa.Float),
    sa.Column("token_logprobs", sa.LargeBinary),
    sa.Column("token_advantages", sa.LargeBinary),
)
sa.Index(
    "batch_item_experience_ix",
    *(batch_item.c[name] for name in (*STAGE_KEY, "experience_id")),
    postgresql_where=batch_item.c.experience_id.is_not(None),
)

replay_pool = sa.Table(  # Samples that may be trained again
    "replay_pool",
    metadata,
    *stage_key(),
    sa.Column("experience_id", UUID, primary_key=True),
)

incarnation = sa.Table(  # The lives of a stage's trainer; the newest one may write
    "incarnation",
    metadata,
    *stage_key(),
    sa.Column("incarnation", sa.BigInteger, primary_key=True, autoincrement=False),
    sa.Column("trainer_id", UUID, nullable=False),
    moment("began_at"),
)

version = sa.Table(  # Published weights by the life that made them
    "version",
    metadata,
    *stage_key(),
    sa.Column("version", sa.BigInteger, primary_key=True, autoincrement=False),
    sa.Column("incarnation", sa.BigInteger, primary_key=True, autoincrement=False),
    sa.Column("line", sa.BigInteger, nullable=False),
    sa.Column("weights_sha256", sa.LargeBinary, nullable=False),
    moment("recorded_at"),
)

step_report = sa.Table(  # A trainer's metrics of a step
    "step_report",
    metadata,
    *stage_key(),
    sa.Column("line", sa.BigInteger, primary_key=True, autoincrement=False),
    sa.Column("step", sa.BigInteger, primary_key=True, autoincrement=False),
    sa.Column("incarnation", sa.BigInteger, primary_key=True, autoincrement=False),
    sa.Column("metrics", JSONB, nullable=False),
    moment("reported_at"),
)

checkpoint = sa.Table(  # A committed checkpoint; `told_*` name the commit that released it
    "checkpoint",
    metadata,
    *stage_key(),
    sa.Column("step", sa.BigInteger, primary_key=True, autoincrement=False),
    sa.Column("incarnation", sa.BigInteger, primary_key=True, autoincrement=False),
    sa.Column("line", sa.BigInteger, nullable=False),
    sa.Column("path", sa.Text, nullable=False),
    sa.Column("manifest_sha256", sa.LargeBinary, nullable=False),
    sa.Column("is_kept", sa.Boolean, nullable=False),
    sa.Column("told_step", sa.BigInteger),
    sa.Column("told_incarnation", sa.BigInteger),
    moment("committed_at"),
)

evaluation = sa.Table(  # The evaluation of a version on a taskset
    "evaluation",
    metadata,
    *stage_key(),
    sa.Column("version", sa.BigInteger, primary_key=True, autoincrement=False),
    sa.Column("taskset", sa.Text, primary_key=True),
    sa.Column("state", sa.Text, nullable=False),
    bigint("num_tasks"),
    bigint("num_failed"),
    sa.Column("figures", JSONB, nullable=False),
    moment("opened_at"),
    sa.Column("done_at", TIME),
)

commit_report = sa.Table(  # The answer that a producer gets for a result
    "commit_report",
    metadata,
    sa.Column("producer", UUID, primary_key=True),
    sa.Column("sequence", sa.BigInteger, primary_key=True, autoincrement=False),
    sa.Column("number", sa.BigInteger, sa.Identity(), nullable=False),
    sa.Column("state", sa.Text, nullable=False),
    text("reason"),
    moment("reported_at"),
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
    moment("received_at"),
    sa.Index(None, "subject"),
)

blob = sa.Table(  # Parts of results that are too large for a message
    "blob",
    metadata,
    sa.Column("tenant", sa.Text, primary_key=True),
    sa.Column("sha256", sa.LargeBinary, primary_key=True),
    bigint("size"),
    sa.Column("body", sa.LargeBinary),
    moment("stored_at"),
)
sa.Index("blob_waiting_index", blob.c.tenant, postgresql_where=blob.c.body.is_not(None))

progress = sa.Table(  # Events of an experiment that clients follow
    "progress",
    metadata,
    sa.Column("tenant", sa.Text, primary_key=True),
    sa.Column("experiment_id", UUID, primary_key=True),
    sa.Column("number", sa.BigInteger, primary_key=True, autoincrement=False),
    sa.Column("stage", sa.Text, nullable=False),
    sa.Column("kind", sa.Text, nullable=False),
    sa.Column("body", JSONB, nullable=False),
    moment("at"),
)
sa.Index(
    "progress_samples_index",
    progress.c.tenant,
    postgresql_where=progress.c.kind == sa.literal_column("'samples'"),
)
sa.Index(
    "progress_changes_index",
    progress.c.tenant,
    progress.c.experiment_id,
    progress.c.stage,
    postgresql_where=progress.c.kind == sa.literal_column("'changed'"),
)
