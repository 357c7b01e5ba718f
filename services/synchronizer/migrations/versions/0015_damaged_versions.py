"""A version may be written again under another path, and be reported as damaged."""

import sqlalchemy as sa
from alembic import op

revision = "0015"
down_revision: str | None = "0014"


def upgrade() -> None:
    op.add_column("version", sa.Column("copy", sa.BigInteger(), server_default="0", nullable=False))
    op.add_column("version", sa.Column("damage", sa.Text(), server_default="", nullable=False))


def downgrade() -> None:
    for name in ("damage", "copy"):
        op.drop_column("version", name)
