"""Pages leave room for updated rows, so that an update changes no index."""

from alembic import op

revision = "0019"
down_revision: str | None = "0018"

PERCENT_FULL = 50
BEFORE = 70
"""Of assignments; runs had no room."""


def upgrade() -> None:
    for table in ("assignment", "run"):
        op.execute(f"ALTER TABLE {table} SET (fillfactor = {PERCENT_FULL})")


def downgrade() -> None:
    op.execute(f"ALTER TABLE assignment SET (fillfactor = {BEFORE})")
    op.execute("ALTER TABLE run RESET (fillfactor)")
