"""What people did to samples is kept, with the reason: exclusion, inclusion, deletion, rewards."""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects.postgresql import TIMESTAMP

revision = "0024"
down_revision: str | None = "0023"


def upgrade() -> None:
    op.create_table(
        "sample_change",
        sa.Column("tenant", sa.Text, nullable=False),
        sa.Column("experiment_id", sa.Uuid, nullable=False),
        sa.Column("stage", sa.Text, nullable=False),
        sa.Column("experience_id", sa.Uuid, nullable=False),
        sa.Column("number", sa.BigInteger, sa.Identity(), nullable=False),
        sa.Column("what", sa.Text, nullable=False),
        sa.Column("reason", sa.Text, nullable=False, server_default=""),
        sa.Column("by", sa.Text, nullable=False, server_default=""),
        sa.Column(
            "at",
            TIMESTAMP(timezone=True),
            nullable=False,
            server_default=sa.func.clock_timestamp(),
        ),
        sa.PrimaryKeyConstraint(
            "experience_id", "tenant", "experiment_id", "stage", "number", name="sample_change_pk"
        ),
    )


def downgrade() -> None:
    op.drop_table("sample_change")
