"""The directory of an experiment has a column, so that no other experiment writes there."""

import sqlalchemy as sa
from alembic import op

revision = "0014"
down_revision: str | None = "0013"

# As json: jsonb refuses texts that a plan may hold.
_FROM_PLANS = "UPDATE experiment SET directory = coalesce(plan::json ->> 'job_dir', '')"


def upgrade() -> None:
    op.add_column(
        "experiment", sa.Column("directory", sa.Text(), server_default="", nullable=False)
    )
    op.execute(_FROM_PLANS)


def downgrade() -> None:
    op.drop_column("experiment", "directory")
