"""Which rows of its source a taskset has is kept in parts, so that no part grows with the rows."""

import sqlalchemy as sa
from alembic import op

revision = "0014"
down_revision: str | None = "0012"
KEY = "task_origin_pk"


def upgrade() -> None:
    op.add_column(
        "task_origin", sa.Column("first", sa.BigInteger(), server_default="0", nullable=False)
    )
    op.drop_constraint(KEY, "task_origin", type_="primary")
    op.create_primary_key(KEY, "task_origin", ["tenant", "taskset_id", "first"])


def downgrade() -> None:
    """The parts of a taskset become one again."""
    op.drop_constraint(KEY, "task_origin", type_="primary")
    op.execute(
        """
        CREATE TEMPORARY TABLE whole ON COMMIT DROP AS
        SELECT tenant, taskset_id, string_agg(rows, '' ORDER BY first) AS rows
        FROM task_origin GROUP BY tenant, taskset_id
        """
    )
    op.execute("TRUNCATE task_origin")
    op.drop_column("task_origin", "first")
    op.execute("INSERT INTO task_origin (tenant, taskset_id, rows) SELECT * FROM whole")
    op.create_primary_key(KEY, "task_origin", ["tenant", "taskset_id"])
