"""A member has the tenant of its token, so that another tenant's cannot go on under its id."""

import sqlalchemy as sa
from alembic import op

revision = "0016"
down_revision: str | None = "0015"


def upgrade() -> None:
    op.add_column("member", sa.Column("tenant", sa.Text(), nullable=True))


def downgrade() -> None:
    op.drop_column("member", "tenant")
