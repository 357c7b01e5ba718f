"""Which parts of the experiences have samples of which weights: searches look into these alone.

The index has one entry for 32 pages of the table, so that inserts hardly notice it.
"""

from alembic import op

revision = "0027"
down_revision: str | None = "0026"
INDEX = "experience_version_ix"


def upgrade() -> None:
    op.create_index(
        INDEX,
        "experience",
        ["version_min", "version_max"],
        postgresql_using="brin",
        postgresql_with={"pages_per_range": 32, "autosummarize": "true"},
    )


def downgrade() -> None:
    op.drop_index(INDEX, "experience")
