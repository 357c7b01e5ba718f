"""Progress events are found by their samples when those are deleted."""

import sqlalchemy as sa
from alembic import op

revision = "0018"
down_revision: str | None = "0017"


def upgrade() -> None:
    op.create_index(
        "progress_samples_index",
        "progress",
        ["tenant"],
        postgresql_where=sa.text("kind = 'samples'"),
    )


def downgrade() -> None:
    op.drop_index("progress_samples_index", "progress")
