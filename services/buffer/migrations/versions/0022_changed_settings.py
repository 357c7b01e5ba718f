"""Settings that a stage was continued with are found without reading all its events."""

import sqlalchemy as sa
from alembic import op

revision = "0022"
down_revision: str | None = "0021"


def upgrade() -> None:
    op.create_index(
        "progress_changes_index",
        "progress",
        ["tenant", "experiment_id", "stage"],
        postgresql_where=sa.text("kind = 'changed'"),
    )


def downgrade() -> None:
    op.drop_index("progress_changes_index", "progress")
