"""A column says whether an assignment is open, so that a lease changes no index."""

import sqlalchemy as sa
from alembic import op

revision = "0016"
down_revision: str | None = "0015"
OPEN = "state IN ('pending', 'leased')"
INDEX, TABLE = "assignment_open_ix", "assignment"
COLUMNS = ["tenant", "experiment_id", "stage", "kind", "explore_step", "position"]
PERCENT_FULL = 70


def upgrade() -> None:
    is_open = sa.Column("is_open", sa.Boolean, sa.Computed(OPEN, persisted=True), nullable=False)
    op.add_column(TABLE, is_open)
    op.drop_index(INDEX, TABLE)
    op.create_index(INDEX, TABLE, COLUMNS, postgresql_where=sa.text("is_open"))
    # A leased assignment finds room beside itself.
    op.execute(f"ALTER TABLE {TABLE} SET (fillfactor = {PERCENT_FULL})")


def downgrade() -> None:
    op.execute(f"ALTER TABLE {TABLE} RESET (fillfactor)")
    op.drop_index(INDEX, TABLE)
    op.create_index(INDEX, TABLE, COLUMNS, postgresql_where=sa.text(OPEN))
    op.drop_column(TABLE, "is_open")
