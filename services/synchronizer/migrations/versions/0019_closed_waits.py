"""Waits that ended are stored, the newest of each experiment."""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql as pg

revision = "0019"
down_revision: str | None = "0018"


def upgrade() -> None:
    op.create_table(
        "closed_wait",
        sa.Column("member_id", sa.Uuid(), nullable=False),
        sa.Column("number", sa.BigInteger(), nullable=False),
        sa.Column("experiment_id", sa.Uuid(), nullable=True),
        sa.Column("tenant", sa.Text(), nullable=False),
        sa.Column("role", sa.Text(), nullable=False),
        sa.Column("address", sa.Text(), nullable=False),
        sa.Column("stage", sa.Text(), nullable=False),
        sa.Column("owner", sa.Text(), nullable=False),
        sa.Column("waits_for", sa.Text(), nullable=False),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("waited_seconds", sa.Double(), nullable=False),
        sa.Column("ended_at", pg.TIMESTAMP(timezone=True), nullable=False),
        sa.CheckConstraint(
            "role IN ('explorer', 'trainer', 'buffer')", name=op.f("closed_wait_role_check")
        ),
        sa.ForeignKeyConstraint(
            ["experiment_id", "tenant"],
            ["experiment.id", "experiment.tenant"],
            name=op.f("closed_wait_experiment_fk"),
            ondelete="CASCADE",
        ),
        sa.PrimaryKeyConstraint("member_id", "number", name=op.f("closed_wait_pk")),
    )
    op.create_index(
        op.f("closed_wait_experiment_id_ended_at_index"),
        "closed_wait",
        ["experiment_id", "ended_at"],
    )


def downgrade() -> None:
    op.drop_table("closed_wait")
