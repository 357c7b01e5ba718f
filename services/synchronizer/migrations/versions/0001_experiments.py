"""Experiments, their stages, weight versions and members."""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql as pg

revision = "0001"
down_revision: str | None = None


def upgrade() -> None:
    _create_experiment()
    _create_stage()
    _create_version()
    _create_member()


def downgrade() -> None:
    for table in ("member", "version", "stage", "experiment"):
        op.drop_table(table)


def _moment(name: str) -> sa.Column[object]:
    now = sa.text("clock_timestamp()")
    return sa.Column(name, pg.TIMESTAMP(timezone=True), nullable=False, server_default=now)


def _create_experiment() -> None:
    op.create_table(
        "experiment",
        sa.Column("id", sa.Uuid, nullable=False),
        sa.Column("tenant", sa.Text, nullable=False),
        sa.Column("label", sa.Text, nullable=False),
        sa.Column("plan", sa.Text, nullable=False),
        sa.Column("state", sa.Text, nullable=False),
        sa.Column("reason", sa.Text, nullable=False),
        sa.Column("start_count", sa.BigInteger, nullable=False),
        _moment("created_at"),
        sa.PrimaryKeyConstraint("id", "tenant", name="experiment_pk"),
        sa.UniqueConstraint("id", name="experiment_id_key"),
        sa.UniqueConstraint("tenant", "label", name="experiment_tenant_label_key"),
        sa.CheckConstraint(
            "state IN ('running', 'finished', 'failed', 'cancelled')",
            name=op.f("experiment_state_check"),
        ),
    )


def _create_stage() -> None:
    op.create_table(
        "stage",
        sa.Column("experiment_id", sa.Uuid, nullable=False),
        sa.Column("tenant", sa.Text, nullable=False),
        sa.Column("name", sa.Text, nullable=False),
        sa.Column("index", sa.Integer, nullable=False),
        sa.Column("state", sa.Text, nullable=False),
        sa.Column("roles", pg.ARRAY(sa.Text), nullable=False),
        sa.Column("finished_roles", pg.ARRAY(sa.Text), nullable=False),
        sa.Column("final_version", sa.BigInteger),
        sa.Column("final_incarnation", sa.BigInteger),
        sa.PrimaryKeyConstraint("experiment_id", "tenant", "name", name="stage_pk"),
        sa.UniqueConstraint(
            "experiment_id", "tenant", "index", name="stage_experiment_id_tenant_index_key"
        ),
        sa.ForeignKeyConstraint(
            ["experiment_id", "tenant"],
            ["experiment.id", "experiment.tenant"],
            name="stage_experiment_fk",
            ondelete="CASCADE",
        ),
        sa.CheckConstraint(
            "state IN ('pending', 'running', 'finished', 'failed')",
            name=op.f("stage_state_check"),
        ),
        sa.CheckConstraint(
            "(final_version IS NULL) = (final_incarnation IS NULL)",
            name=op.f("stage_final_version_check"),
        ),
    )


def _create_version() -> None:
    op.create_table(
        "version",
        sa.Column("experiment_id", sa.Uuid, nullable=False),
        sa.Column("tenant", sa.Text, nullable=False),
        sa.Column("stage", sa.Text, nullable=False),
        sa.Column("incarnation", sa.BigInteger, nullable=False),
        sa.Column("version", sa.BigInteger, nullable=False),
        sa.Column("kind", sa.Text, nullable=False),
        sa.Column("base_version", sa.BigInteger, nullable=False),
        sa.Column("parent_version", sa.BigInteger, nullable=False),
        sa.Column("path", sa.Text, nullable=False),
        sa.Column("manifest_sha256", sa.LargeBinary, nullable=False),
        sa.Column("weights_sha256", sa.LargeBinary, nullable=False),
        sa.Column("available", sa.Boolean, nullable=False),
        _moment("published_at"),
        sa.PrimaryKeyConstraint(
            "experiment_id", "tenant", "stage", "incarnation", "version", name="version_pk"
        ),
        sa.ForeignKeyConstraint(
            ["experiment_id", "tenant", "stage"],
            ["stage.experiment_id", "stage.tenant", "stage.name"],
            name="version_stage_fk",
            ondelete="CASCADE",
        ),
        sa.CheckConstraint("kind IN ('full', 'lora', 'delta')", name=op.f("version_kind_check")),
    )


def _create_member() -> None:
    op.create_table(
        "member",
        sa.Column("id", sa.Uuid, nullable=False),
        sa.Column("role", sa.Text, nullable=False),
        sa.Column("address", sa.Text, nullable=False),
        sa.Column("experiment_id", sa.Uuid),
        sa.Column("stage", sa.Text, nullable=False),
        sa.Column("activity", sa.Text, nullable=False),
        sa.Column("version", sa.BigInteger, nullable=False),
        sa.Column("pinned_versions", pg.ARRAY(sa.BigInteger), nullable=False),
        sa.Column("waits", pg.JSONB, nullable=False),
        _moment("last_heard"),
        sa.PrimaryKeyConstraint("id", name="member_pk"),
        sa.CheckConstraint(
            "role IN ('explorer', 'trainer', 'buffer')", name=op.f("member_role_check")
        ),
    )
    op.create_index("member_experiment_id_index", "member", ["experiment_id"])
