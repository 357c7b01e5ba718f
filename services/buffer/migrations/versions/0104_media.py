"""Images and their uses; nothing that was stored before has any."""

from alembic import op

revision = "0104"
down_revision: str | None = "0103"

UPGRADE = (
    """\
CREATE TABLE media (
    tenant text NOT NULL,
    sha256 bytea NOT NULL,
    number bigint NOT NULL,
    size bigint DEFAULT '0' NOT NULL,
    media_type text NOT NULL,
    body bytea NOT NULL,
    stored_at timestamptz DEFAULT clock_timestamp() NOT NULL,
    CONSTRAINT media_pk PRIMARY KEY (tenant, sha256, number)
)""",
    "ALTER TABLE media ALTER COLUMN body SET STORAGE EXTERNAL",  # images are compressed already
    """\
CREATE TABLE media_use (
    tenant text NOT NULL,
    sha256 bytea NOT NULL,
    used_by text NOT NULL,
    CONSTRAINT media_use_pk PRIMARY KEY (tenant, sha256, used_by)
)""",
    "CREATE INDEX media_use_used_by_ix ON media_use (used_by)",
)


def upgrade() -> None:
    for statement in UPGRADE:
        op.execute(statement)


def downgrade() -> None:
    op.execute("DROP TABLE media, media_use")
