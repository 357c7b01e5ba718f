"""An index of clients' sessions, which quotas count."""

from alembic import op

revision = "0107"
down_revision: str | None = "0106"


def upgrade() -> None:
    op.execute(
        "CREATE INDEX session_client_ix ON session (tenant, experiment_id, stage)"
        " WHERE client IS NOT NULL"
    )


def downgrade() -> None:
    op.execute("DROP INDEX session_client_ix")
