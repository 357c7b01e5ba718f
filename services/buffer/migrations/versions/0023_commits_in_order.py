"""Experiences are read in the order of their commits, for the place of `experience_buffer.path`."""

from alembic import op

revision = "0023"
down_revision: str | None = "0022"


def upgrade() -> None:
    op.create_index("experience_number_ix", "experience", ["ready_number"], postgresql_using="brin")


def downgrade() -> None:
    op.drop_index("experience_number_ix", "experience")
