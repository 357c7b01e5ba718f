"""Blobs that wait to be stored are found by their tenant, for its quota."""

import sqlalchemy as sa
from alembic import op

revision = "0021"
down_revision: str | None = "0020"


def upgrade() -> None:
    waiting = sa.text("body IS NOT NULL")
    op.create_index("blob_waiting_index", "blob", ["tenant"], postgresql_where=waiting)


def downgrade() -> None:
    op.drop_index("blob_waiting_index", "blob")
