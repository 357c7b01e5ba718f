"""Digests of origin of turns, rows, batches, versions and checkpoints; rows before have none."""

import sqlalchemy as sa
from alembic import op

revision = "0101"
down_revision = "0100"

COLUMNS = (
    ("experience", "turn_sha256"),
    ("batch_item", "row_sha256"),
    ("batch", "rows_sha256"),
    ("batch", "lineage_sha256"),
    ("version", "lineage_sha256"),
    ("checkpoint", "lineage_sha256"),
)


def upgrade() -> None:
    for table, name in COLUMNS:
        op.add_column(table, sa.Column(name, sa.LargeBinary))


def downgrade() -> None:
    for table, name in COLUMNS:
        op.drop_column(table, name)
