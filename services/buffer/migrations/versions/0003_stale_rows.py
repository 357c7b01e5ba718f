"""A stage counts the rows that are left out because of their age."""

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision: str | None = "0002"


def upgrade() -> None:
    op.add_column(
        "stage", sa.Column("num_stale", sa.BigInteger(), server_default="0", nullable=False)
    )


def downgrade() -> None:
    op.drop_column("stage", "num_stale")
