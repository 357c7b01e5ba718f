"""A scope has its place and the metrics of its group."""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects.postgresql import JSONB

revision = "0002"
down_revision: str | None = "0001"

STAGE_KEY = ("tenant", "experiment_id", "stage")
FILL_PLACES = """
UPDATE pipeline_scope SET explore_step = a.explore_step, position = a.position
FROM assignment a
WHERE a.tenant = pipeline_scope.tenant AND a.experiment_id = pipeline_scope.experiment_id
    AND a.stage = pipeline_scope.stage AND a.assignment_id = pipeline_scope.assignment_id
"""


def upgrade() -> None:
    for name in ("explore_step", "position"):
        number = sa.Column(name, sa.BigInteger(), server_default="0", nullable=False)
        op.add_column("pipeline_scope", number)
    op.add_column(
        "pipeline_scope", sa.Column("metrics", JSONB(), server_default="{}", nullable=False)
    )
    op.add_column("pipeline_scope", sa.Column("batched_step", sa.BigInteger(), nullable=True))
    op.execute(FILL_PLACES)
    op.create_index(
        "pipeline_scope_unreported_ix",
        "pipeline_scope",
        [*STAGE_KEY, "explore_step", "position"],
        postgresql_where=sa.text("state = 'done' AND batched_step IS NULL"),
    )


def downgrade() -> None:
    op.drop_index("pipeline_scope_unreported_ix", "pipeline_scope")
    for name in ("batched_step", "metrics", "position", "explore_step"):
        op.drop_column("pipeline_scope", name)
