"""The root of weights by BLAKE3; versions of release 0.1 have none."""

from alembic import op

revision = "0106"
down_revision: str | None = "0105"


def upgrade() -> None:
    op.execute("ALTER TABLE version ADD COLUMN weights_blake3 bytea DEFAULT '' NOT NULL")


def downgrade() -> None:
    op.execute("ALTER TABLE version DROP COLUMN weights_blake3")
