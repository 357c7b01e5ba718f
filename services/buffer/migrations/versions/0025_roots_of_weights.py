"""Weights are identified by a root over the hashes of their tensors."""

import sqlalchemy as sa
from alembic import op

revision = "0025"
down_revision: str | None = "0024"


def upgrade() -> None:
    root = sa.Column("weights_root", sa.LargeBinary(), server_default="", nullable=False)
    op.add_column("version", root)


def downgrade() -> None:
    op.drop_column("version", "weights_root")
