"""A stage has the version of its newest explore step, and whether newer weights are wanted."""

import sqlalchemy as sa
from alembic import op

revision = "0012"
down_revision: str | None = "0010"


def upgrade() -> None:
    op.add_column(
        "stage", sa.Column("step_version", sa.BigInteger(), server_default="0", nullable=False)
    )
    op.add_column(
        "stage",
        sa.Column("wants_version", sa.Boolean(), server_default=sa.false(), nullable=False),
    )


def downgrade() -> None:
    op.drop_column("stage", "wants_version")
    op.drop_column("stage", "step_version")
