"""An upload that began long ago and continues is not abandoned."""

from alembic import op

revision = "0017"
down_revision: str | None = "0016"


def upgrade() -> None:
    op.alter_column("taskset_upload", "begun_at", new_column_name="last_sent_at")


def downgrade() -> None:
    op.alter_column("taskset_upload", "last_sent_at", new_column_name="begun_at")
