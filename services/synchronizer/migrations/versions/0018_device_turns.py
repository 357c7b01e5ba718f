"""An experiment says whose turn it is on a device that its engine and its trainer share."""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql as pg

revision = "0018"
down_revision: str | None = "0017"


def upgrade() -> None:
    op.add_column("experiment", sa.Column("turn", pg.JSONB(none_as_null=True), nullable=True))


def downgrade() -> None:
    op.drop_column("experiment", "turn")
