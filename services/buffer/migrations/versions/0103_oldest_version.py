"""The oldest version whose tokens a batch trains; batches of before train all."""

from alembic import op

revision = "0103"
down_revision: str | None = "0102"


def upgrade() -> None:
    op.execute("ALTER TABLE batch ADD COLUMN oldest_version bigint DEFAULT 0 NOT NULL")


def downgrade() -> None:
    op.execute("ALTER TABLE batch DROP COLUMN oldest_version")
