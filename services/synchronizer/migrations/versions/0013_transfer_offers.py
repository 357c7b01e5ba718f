"""A version may have an offer to transfer it from memory to memory."""

import sqlalchemy as sa
from alembic import op

revision = "0013"
down_revision: str | None = "0001"


def upgrade() -> None:
    for name in ("offer_address", "offer_group"):
        op.add_column("version", sa.Column(name, sa.Text(), server_default="", nullable=False))


def downgrade() -> None:
    for name in ("offer_group", "offer_address"):
        op.drop_column("version", name)
