"""Planned train steps of a stage that its explore steps left without rows."""

import sqlalchemy as sa
from alembic import op

revision = "0028"
down_revision: str | None = "0027"


def upgrade() -> None:
    op.add_column(
        "stage", sa.Column("num_unfilled", sa.BigInteger(), server_default="0", nullable=False)
    )


def downgrade() -> None:
    op.drop_column("stage", "num_unfilled")
