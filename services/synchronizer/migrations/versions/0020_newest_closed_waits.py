"""The newest waits that ended, of all experiments, are found without sorting all."""

from alembic import op

revision = "0020"
down_revision: str | None = "0019"


def upgrade() -> None:
    op.create_index(op.f("closed_wait_ended_at_index"), "closed_wait", ["ended_at"])


def downgrade() -> None:
    op.drop_index(op.f("closed_wait_ended_at_index"), table_name="closed_wait")
