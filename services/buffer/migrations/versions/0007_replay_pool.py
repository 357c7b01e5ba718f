"""Samples that may be trained again."""

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision: str | None = "0006"

UUID = sa.Uuid(as_uuid=False)
STAGE_KEY = ("tenant", "experiment_id", "stage")


def upgrade() -> None:
    op.create_table(
        "replay_pool",
        sa.Column("tenant", sa.Text(), nullable=False),
        sa.Column("experiment_id", UUID, nullable=False),
        sa.Column("stage", sa.Text(), nullable=False),
        sa.Column("experience_id", UUID, nullable=False),
        sa.PrimaryKeyConstraint(*STAGE_KEY, "experience_id", name="replay_pool_pk"),
    )


def downgrade() -> None:
    op.drop_table("replay_pool")
