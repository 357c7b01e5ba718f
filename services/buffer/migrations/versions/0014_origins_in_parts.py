"""Source row numbers of a taskset are kept in parts, so that no part grows with the rows."""

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
    op.execute(
        """
        UPDATE task_origin AS part SET rows = whole.rows
        FROM (
            SELECT tenant, taskset_id, min(first) AS first,
                   string_agg(rows, '' ORDER BY first) AS rows
            FROM task_origin GROUP BY tenant, taskset_id
        ) AS whole
        WHERE (part.tenant, part.taskset_id, part.first)
            = (whole.tenant, whole.taskset_id, whole.first)
        """
    )
    op.execute(
        """
        DELETE FROM task_origin AS part USING task_origin AS earlier
        WHERE (part.tenant, part.taskset_id) = (earlier.tenant, earlier.taskset_id)
            AND earlier.first < part.first
        """
    )
    op.drop_constraint(KEY, "task_origin", type_="primary")
    op.drop_column("task_origin", "first")
    op.create_primary_key(KEY, "task_origin", ["tenant", "taskset_id"])
