"""A segment has the times at which its contents were retired and removed."""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects.postgresql import TIMESTAMP

revision = "0008"
down_revision: str | None = "0007"

MOMENTS = ("retired_at", "removed_at")
UNREMOVED = ("segment_unremoved_ix", "segment")


def upgrade() -> None:
    for name in MOMENTS:
        op.add_column("segment", sa.Column(name, TIMESTAMP(timezone=True), nullable=True))
    # Few at any time, however many have gone before.
    op.create_index(
        *UNREMOVED,
        ["tenant", "experiment_id", "stage", "segment_id"],
        postgresql_where=sa.text("removed_at IS NULL"),
    )


def downgrade() -> None:
    op.drop_index(*UNREMOVED)
    for name in reversed(MOMENTS):
        op.drop_column("segment", name)
