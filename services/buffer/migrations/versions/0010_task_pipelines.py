"""A taskset has the counts of its task pipeline, and its source row numbers."""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects.postgresql import JSONB

revision = "0010"
down_revision: str | None = "0009"


def upgrade() -> None:
    op.add_column("taskset", sa.Column("pipeline", JSONB()))
    op.create_table(
        "task_origin",
        sa.Column("tenant", sa.Text(), nullable=False),
        sa.Column("taskset_id", sa.Uuid(as_uuid=False), nullable=False),
        sa.Column("rows", sa.LargeBinary(), nullable=False),
        sa.PrimaryKeyConstraint("tenant", "taskset_id"),
    )


def downgrade() -> None:
    op.drop_table("task_origin")
    op.drop_column("taskset", "pipeline")
