"""The schema `buffer`: tasksets, stages, work, experiences, batches, checkpoints, progress."""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects.postgresql import JSONB, TIMESTAMP

revision = "0001"
down_revision: str | None = None

UUID = sa.Uuid(as_uuid=False)
TIME = TIMESTAMP(timezone=True)
STAGE_KEY = ("tenant", "experiment_id", "stage")
TABLES = (
    "taskset",
    "task",
    "stage",
    "stage_taskset",
    "incarnation",
    "version",
    "checkpoint",
    "step_report",
    "segment",
    "payload",
    "assignment",
    "run",
    "run_attempt",
    "evaluation",
    "experience",
    "pipeline_scope",
    "batch",
    "batch_item",
    "commit_report",
    "dead_letter",
    "blob",
    "progress",
)


def upgrade() -> None:
    _create_taskset()
    _create_task()
    _create_stage()
    _create_stage_taskset()
    _create_incarnation()
    _create_version()
    _create_checkpoint()
    _create_step_report()
    _create_segment()
    _create_payload()
    _create_assignment()
    _create_run()
    _create_run_attempt()
    _create_evaluation()
    _create_experience()
    _create_pipeline_scope()
    _create_batch()
    _create_batch_item()
    _create_commit_report()
    _create_dead_letter()
    _create_blob()
    _create_progress()


def downgrade() -> None:
    for name in reversed(TABLES):
        op.drop_table(name)


def _stage_key() -> tuple[sa.Column[str], sa.Column[str], sa.Column[str]]:
    return (
        sa.Column("tenant", sa.Text(), nullable=False),
        sa.Column("experiment_id", UUID, nullable=False),
        sa.Column("stage", sa.Text(), nullable=False),
    )


def _number(name: str, default: int = 0) -> sa.Column[int]:
    return sa.Column(name, sa.BigInteger(), server_default=str(default), nullable=False)


def _text(name: str) -> sa.Column[str]:
    return sa.Column(name, sa.Text(), server_default="", nullable=False)


def _moment(name: str) -> sa.Column[object]:
    now = sa.text("clock_timestamp()")
    return sa.Column(name, TIME, server_default=now, nullable=False)


def _create_taskset() -> None:
    op.create_table(
        "taskset",
        sa.Column("tenant", sa.Text(), nullable=False),
        sa.Column("taskset_id", UUID, nullable=False),
        sa.Column("name", sa.Text(), nullable=True),
        sa.Column("source", sa.Text(), nullable=True),
        sa.Column("request_id", UUID, nullable=True),
        sa.Column("is_complete", sa.Boolean(), nullable=False),
        _number("num_rows"),
        _moment("created_at"),
        sa.PrimaryKeyConstraint("tenant", "taskset_id", name="taskset_pk"),
        sa.UniqueConstraint("tenant", "name", name="taskset_tenant_name_uq"),
        sa.UniqueConstraint("tenant", "source", name="taskset_tenant_source_uq"),
    )


def _create_task() -> None:
    op.create_table(
        "task",
        sa.Column("tenant", sa.Text(), nullable=False),
        sa.Column("taskset_id", UUID, nullable=False),
        sa.Column("index", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("body", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("tenant", "taskset_id", "index", name="task_pk"),
    )


def _create_stage() -> None:
    op.create_table(
        "stage",
        *_stage_key(),
        sa.Column("plan", sa.Text(), nullable=False),
        _number("seed"),
        sa.Column("state", sa.Text(), nullable=False),
        _text("reason"),
        _number("num_rows"),
        _number("total_train_steps"),
        _number("total_explore_steps"),
        _number("explore_step"),
        _number("num_drawn"),
        _number("line", default=1),
        _number("incarnation"),
        sa.Column("published", sa.BigInteger(), nullable=True),
        _number("recorded_step"),
        _number("trained_step"),
        sa.Column("finished_step", sa.BigInteger(), nullable=True),
        sa.Column("segment_id", sa.BigInteger(), nullable=False),
        _moment("opened_at"),
        sa.PrimaryKeyConstraint("tenant", "experiment_id", "stage", name="stage_pk"),
    )


def _create_stage_taskset() -> None:
    op.create_table(
        "stage_taskset",
        *_stage_key(),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("taskset_id", UUID, nullable=False),
        sa.Column("kind", sa.Text(), nullable=False),
        _number("num_rows"),
        sa.PrimaryKeyConstraint(*STAGE_KEY, "name", name="stage_taskset_pk"),
    )


def _create_incarnation() -> None:
    op.create_table(
        "incarnation",
        *_stage_key(),
        sa.Column("incarnation", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("trainer_id", UUID, nullable=False),
        _moment("began_at"),
        sa.PrimaryKeyConstraint(*STAGE_KEY, "incarnation", name="incarnation_pk"),
    )


def _create_version() -> None:
    op.create_table(
        "version",
        *_stage_key(),
        sa.Column("version", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("incarnation", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("line", sa.BigInteger(), nullable=False),
        sa.Column("weights_sha256", sa.LargeBinary(), nullable=False),
        _moment("recorded_at"),
        sa.PrimaryKeyConstraint(*STAGE_KEY, "version", "incarnation", name="version_pk"),
    )


def _create_checkpoint() -> None:
    op.create_table(
        "checkpoint",
        *_stage_key(),
        sa.Column("step", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("incarnation", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("line", sa.BigInteger(), nullable=False),
        sa.Column("path", sa.Text(), nullable=False),
        sa.Column("manifest_sha256", sa.LargeBinary(), nullable=False),
        sa.Column("is_kept", sa.Boolean(), nullable=False),
        sa.Column("told_step", sa.BigInteger(), nullable=True),
        sa.Column("told_incarnation", sa.BigInteger(), nullable=True),
        _moment("committed_at"),
        sa.PrimaryKeyConstraint(*STAGE_KEY, "step", "incarnation", name="checkpoint_pk"),
    )


def _create_step_report() -> None:
    op.create_table(
        "step_report",
        *_stage_key(),
        sa.Column("line", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("step", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("incarnation", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("metrics", JSONB(), nullable=False),
        _moment("reported_at"),
        sa.PrimaryKeyConstraint(*STAGE_KEY, "line", "step", "incarnation", name="step_report_pk"),
    )


def _create_segment() -> None:
    op.create_table(
        "segment",
        *_stage_key(),
        sa.Column("segment_id", sa.BigInteger(), sa.Identity(always=False), nullable=False),
        _number("num_rows"),
        _number("num_bytes"),
        _moment("opened_at"),
        sa.PrimaryKeyConstraint(*STAGE_KEY, "segment_id", name="segment_pk"),
        sa.UniqueConstraint("segment_id", name="segment_segment_id_uq"),
    )


def _create_payload() -> None:
    op.create_table(
        "payload",
        *_stage_key(),
        sa.Column("segment_id", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("payload_id", UUID, nullable=False),
        sa.Column("codec", sa.Text(), nullable=False),
        sa.Column("schema_version", sa.Integer(), nullable=False),
        sa.Column("body", sa.LargeBinary(), nullable=False),
        sa.PrimaryKeyConstraint(*STAGE_KEY, "segment_id", "payload_id", name="payload_pk"),
        postgresql_partition_by="LIST (segment_id)",
    )
    # Compressing samples costs more than it saves, and stands in the way of reading a part.
    op.execute("ALTER TABLE payload ALTER COLUMN body SET STORAGE EXTERNAL")


def _create_assignment() -> None:
    op.create_table(
        "assignment",
        *_stage_key(),
        sa.Column("assignment_id", UUID, nullable=False),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("taskset", sa.Text(), nullable=False),
        _number("task_index"),
        _number("explore_step"),
        _number("position"),
        _number("refill_round"),
        _number("required_version"),
        _number("repeat_times"),
        _number("num_open_runs"),
        sa.Column("state", sa.Text(), nullable=False),
        _text("reason"),
        sa.Column("lease_token", UUID, nullable=True),
        _number("num_attempts"),
        sa.Column("leased_by", UUID, nullable=True),
        sa.Column("lease_until", TIME, nullable=True),
        _moment("opened_at"),
        sa.PrimaryKeyConstraint(*STAGE_KEY, "assignment_id", name="assignment_pk"),
        sa.UniqueConstraint(
            *STAGE_KEY, "kind", "explore_step", "position", name="assignment_place_uq"
        ),
    )
    op.create_index(
        "assignment_open_ix",
        "assignment",
        [*STAGE_KEY, "kind", "explore_step", "position"],
        postgresql_where=sa.text("state IN ('pending', 'leased')"),
    )


def _create_run() -> None:
    op.create_table(
        "run",
        *_stage_key(),
        sa.Column("assignment_id", UUID, nullable=False),
        sa.Column("run", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("state", sa.Text(), nullable=False),
        _number("num_failed"),
        _text("reason"),
        sa.PrimaryKeyConstraint(*STAGE_KEY, "assignment_id", "run", name="run_pk"),
    )


def _create_run_attempt() -> None:
    op.create_table(
        "run_attempt",
        *_stage_key(),
        sa.Column("assignment_id", UUID, nullable=False),
        sa.Column("run", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("attempt", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("producer", UUID, nullable=False),
        sa.Column("sequence", sa.BigInteger(), nullable=False),
        sa.Column("state", sa.Text(), nullable=False),
        _text("reason"),
        sa.Column("content_hash", sa.LargeBinary(), nullable=False),
        sa.Column("metrics", JSONB(), nullable=False),
        sa.Column("duration_seconds", sa.Float(), nullable=False),
        _moment("received_at"),
        sa.PrimaryKeyConstraint(
            *STAGE_KEY, "assignment_id", "run", "attempt", name="run_attempt_pk"
        ),
        sa.UniqueConstraint("producer", "sequence", name="run_attempt_producer_sequence_uq"),
    )
    op.create_index(
        "run_attempt_winner_uq",
        "run_attempt",
        [*STAGE_KEY, "assignment_id", "run"],
        unique=True,
        postgresql_where=sa.text("state = 'won'"),
    )


def _create_evaluation() -> None:
    op.create_table(
        "evaluation",
        *_stage_key(),
        sa.Column("version", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("taskset", sa.Text(), nullable=False),
        sa.Column("state", sa.Text(), nullable=False),
        _number("num_tasks"),
        _number("num_failed"),
        sa.Column("figures", JSONB(), nullable=False),
        _moment("opened_at"),
        sa.Column("done_at", TIME, nullable=True),
        sa.PrimaryKeyConstraint(*STAGE_KEY, "version", "taskset", name="evaluation_pk"),
    )


def _create_experience() -> None:
    op.create_table(
        "experience",
        *_stage_key(),
        sa.Column("experience_id", UUID, nullable=False),
        sa.Column("assignment_id", UUID, nullable=False),
        _number("explore_step"),
        _number("position"),
        _number("run"),
        _number("attempt"),
        _number("step"),
        _text("suffix"),
        _number("revision"),
        sa.Column("parent_id", UUID, nullable=True),
        sa.Column("segment_id", sa.BigInteger(), nullable=False),
        sa.Column("payload_id", UUID, nullable=False),
        sa.Column("state", sa.Text(), nullable=False),
        _text("reason"),
        sa.Column("reward", sa.Float(), nullable=True),
        sa.Column("advantage", sa.Float(), nullable=True),
        sa.Column("version_min", sa.BigInteger(), nullable=True),
        sa.Column("version_max", sa.BigInteger(), nullable=True),
        _number("num_tokens"),
        _number("response_length"),
        sa.Column("finish_reason", sa.Text(), nullable=False),
        sa.Column("metrics", JSONB(), nullable=False),
        sa.Column("content_hash", sa.LargeBinary(), nullable=False),
        sa.Column("ready_number", sa.BigInteger(), sa.Identity(always=False), nullable=False),
        _moment("created_at"),
        sa.PrimaryKeyConstraint(*STAGE_KEY, "experience_id", name="experience_pk"),
    )
    op.create_index("experience_assignment_ix", "experience", [*STAGE_KEY, "assignment_id"])
    op.create_index(
        "experience_waiting_ix",
        "experience",
        [*STAGE_KEY, "state", "explore_step", "position", "run", "step", "suffix"],
        postgresql_where=sa.text("state IN ('raw', 'ready')"),
    )


def _create_pipeline_scope() -> None:
    op.create_table(
        "pipeline_scope",
        *_stage_key(),
        sa.Column("assignment_id", UUID, nullable=False),
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column("claim_token", UUID, nullable=True),
        sa.Column("claimed_until", TIME, nullable=True),
        _number("attempts"),
        _text("error"),
        _moment("opened_at"),
        sa.PrimaryKeyConstraint(*STAGE_KEY, "assignment_id", name="pipeline_scope_pk"),
    )
    op.create_index(
        "pipeline_scope_open_ix",
        "pipeline_scope",
        [*STAGE_KEY, "opened_at"],
        postgresql_where=sa.text("state IN ('open', 'claimed')"),
    )


def _create_batch() -> None:
    op.create_table(
        "batch",
        *_stage_key(),
        sa.Column("line", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("step", sa.BigInteger(), autoincrement=False, nullable=False),
        _number("incarnation"),
        _number("num_rows"),
        sa.Column("metrics", JSONB(), nullable=False),
        _moment("composed_at"),
        sa.PrimaryKeyConstraint(*STAGE_KEY, "line", "step", name="batch_pk"),
    )


def _create_batch_item() -> None:
    op.create_table(
        "batch_item",
        *_stage_key(),
        sa.Column("line", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("step", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("position", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("source", sa.Text(), nullable=False),
        sa.Column("experience_id", UUID, nullable=True),
        sa.Column("taskset_id", UUID, nullable=True),
        sa.Column("row_index", sa.BigInteger(), nullable=True),
        sa.Column("advantage", sa.Float(), nullable=False),
        sa.Column("weight", sa.Float(), nullable=False),
        sa.Column("mean_ratio", sa.Float(), nullable=True),
        sa.Column("trained_advantage", sa.Float(), nullable=True),
        sa.PrimaryKeyConstraint(*STAGE_KEY, "line", "step", "position", name="batch_item_pk"),
    )
    op.create_index(
        "batch_item_experience_ix",
        "batch_item",
        [*STAGE_KEY, "experience_id"],
        postgresql_where=sa.text("experience_id IS NOT NULL"),
    )


def _create_commit_report() -> None:
    op.create_table(
        "commit_report",
        sa.Column("producer", UUID, nullable=False),
        sa.Column("sequence", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("number", sa.BigInteger(), sa.Identity(always=False), nullable=False),
        sa.Column("state", sa.Text(), nullable=False),
        _text("reason"),
        _moment("reported_at"),
        sa.PrimaryKeyConstraint("producer", "sequence", name="commit_report_pk"),
    )
    op.create_index("commit_report_producer_number_ix", "commit_report", ["producer", "number"])


def _create_dead_letter() -> None:
    op.create_table(
        "dead_letter",
        sa.Column("number", sa.BigInteger(), sa.Identity(always=False), nullable=False),
        sa.Column("subject", sa.Text(), nullable=False),
        sa.Column("producer", UUID, nullable=True),
        sa.Column("sequence", sa.BigInteger(), nullable=True),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("body", sa.LargeBinary(), nullable=False),
        _moment("received_at"),
        sa.PrimaryKeyConstraint("number", name="dead_letter_pk"),
    )
    op.create_index("dead_letter_subject_ix", "dead_letter", ["subject"])


def _create_blob() -> None:
    op.create_table(
        "blob",
        sa.Column("tenant", sa.Text(), nullable=False),
        sa.Column("sha256", sa.LargeBinary(), nullable=False),
        _number("size"),
        sa.Column("body", sa.LargeBinary(), nullable=True),
        _moment("stored_at"),
        sa.PrimaryKeyConstraint("tenant", "sha256", name="blob_pk"),
    )


def _create_progress() -> None:
    op.create_table(
        "progress",
        sa.Column("tenant", sa.Text(), nullable=False),
        sa.Column("experiment_id", UUID, nullable=False),
        sa.Column("number", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("stage", sa.Text(), nullable=False),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("body", JSONB(), nullable=False),
        _moment("at"),
        sa.PrimaryKeyConstraint("tenant", "experiment_id", "number", name="progress_pk"),
    )
