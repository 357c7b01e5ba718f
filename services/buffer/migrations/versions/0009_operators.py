"""A revision says what experience operators changed: its reward, and whether it is masked."""

import sqlalchemy as sa
from alembic import op

revision = "0009"
down_revision: str | None = "0008"


def upgrade() -> None:
    op.add_column("experience", sa.Column("shaped_reward", sa.Float()))
    op.add_column(
        "experience",
        sa.Column("is_masked", sa.Boolean(), server_default=sa.false(), nullable=False),
    )


def downgrade() -> None:
    op.drop_column("experience", "is_masked")
    op.drop_column("experience", "shaped_reward")
