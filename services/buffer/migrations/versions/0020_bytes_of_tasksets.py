"""A taskset counts the bytes that its client has submitted, for the quota of its tenant."""

import sqlalchemy as sa
from alembic import op

revision = "0020"
down_revision: str | None = "0019"


def upgrade() -> None:
    column = sa.Column("num_bytes", sa.BigInteger(), server_default="0", nullable=False)
    op.add_column("taskset", column)


def downgrade() -> None:
    op.drop_column("taskset", "num_bytes")
