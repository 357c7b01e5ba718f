"""State of selectors: the features and ranks of tasks, and beliefs about their pass rates."""

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision: str | None = "0003"

UUID = sa.Uuid(as_uuid=False)


def upgrade() -> None:
    op.create_table(
        "task_feature",
        sa.Column("tenant", sa.Text(), nullable=False),
        sa.Column("taskset_id", UUID, nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("numbers", sa.LargeBinary(), nullable=False),
        sa.PrimaryKeyConstraint("tenant", "taskset_id", "name", name="task_feature_pk"),
    )
    op.create_table(
        "task_ranking",
        *_stage_taskset(),
        sa.Column("rows", sa.LargeBinary(), nullable=False),
        sa.PrimaryKeyConstraint(
            "tenant", "experiment_id", "stage", "taskset", name="task_ranking_pk"
        ),
    )
    # Uncompressed, so that a part of it is read without the rest.
    op.execute("ALTER TABLE task_ranking ALTER COLUMN rows SET STORAGE EXTERNAL")
    op.create_table(
        "task_beliefs",
        *_stage_taskset(),
        *(
            sa.Column(name, sa.LargeBinary(), nullable=False)
            for name in ("weak", "strong", "alpha", "beta")
        ),
        sa.Column("capability", sa.Float(), nullable=True),
        sa.Column("rho", sa.Float(), nullable=False),
        sa.Column("num_updates", sa.BigInteger(), server_default="0", nullable=False),
        sa.PrimaryKeyConstraint(
            "tenant", "experiment_id", "stage", "taskset", name="task_beliefs_pk"
        ),
    )
    op.add_column(
        "assignment",
        sa.Column("awaits_feedback", sa.Boolean(), server_default=sa.false(), nullable=False),
    )
    op.create_index(
        "assignment_feedback_ix",
        "assignment",
        ["tenant", "experiment_id", "stage", "explore_step", "position"],
        postgresql_where=sa.text("awaits_feedback"),
    )


def _stage_taskset() -> tuple[sa.Column[str], ...]:
    return (
        sa.Column("tenant", sa.Text(), nullable=False),
        sa.Column("experiment_id", UUID, nullable=False),
        sa.Column("stage", sa.Text(), nullable=False),
        sa.Column("taskset", sa.Text(), nullable=False),
    )


def downgrade() -> None:
    op.drop_index("assignment_feedback_ix", "assignment")
    op.drop_column("assignment", "awaits_feedback")
    for name in ("task_beliefs", "task_ranking", "task_feature"):
        op.drop_table(name)
