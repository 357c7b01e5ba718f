"""Uploads have a table: a queue has many, and the response to a retry lists refused rows."""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects.postgresql import JSONB, TIMESTAMP

revision = "0005"
down_revision: str | None = "0004"

UUID = sa.Uuid(as_uuid=False)
KEEP_UPLOADS = """
INSERT INTO taskset_upload (tenant, request_id, taskset_id, num_stored, is_complete)
SELECT tenant, request_id, taskset_id,
    (SELECT count(*) FROM task
     WHERE task.tenant = taskset.tenant AND task.taskset_id = taskset.taskset_id),
    is_complete
FROM taskset WHERE request_id IS NOT NULL
"""
KEEP_REQUESTS = """
UPDATE taskset SET request_id = taskset_upload.request_id FROM taskset_upload
WHERE taskset_upload.tenant = taskset.tenant AND taskset_upload.taskset_id = taskset.taskset_id
"""


def upgrade() -> None:
    op.create_table(
        "taskset_upload",
        sa.Column("tenant", sa.Text(), nullable=False),
        sa.Column("request_id", UUID, nullable=False),
        sa.Column("taskset_id", UUID, nullable=False),
        sa.Column("num_stored", sa.BigInteger(), server_default="0", nullable=False),
        sa.Column("num_refused", sa.BigInteger(), server_default="0", nullable=False),
        sa.Column("refused", JSONB(), server_default="[]", nullable=False),
        sa.Column("is_complete", sa.Boolean(), server_default=sa.false(), nullable=False),
        sa.Column(
            "begun_at",
            TIMESTAMP(timezone=True),
            server_default=sa.text("clock_timestamp()"),
            nullable=False,
        ),
        sa.PrimaryKeyConstraint("tenant", "request_id", name="taskset_upload_pk"),
    )
    op.create_index(
        "taskset_upload_tenant_taskset_id_ix", "taskset_upload", ["tenant", "taskset_id"]
    )
    op.add_column(
        "taskset", sa.Column("is_queue", sa.Boolean(), server_default=sa.false(), nullable=False)
    )
    op.execute(KEEP_UPLOADS)
    op.drop_column("taskset", "request_id")


def downgrade() -> None:
    op.add_column("taskset", sa.Column("request_id", UUID, nullable=True))
    op.execute(KEEP_REQUESTS)
    op.drop_column("taskset", "is_queue")
    op.drop_table("taskset_upload")
