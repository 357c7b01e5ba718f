"""The synchronizer's tables; `migrations` creates them."""

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql as pg

from services.synchronizer.domain import ExperimentStageState, ExperimentState, Role, VersionKind

SCHEMA = "synchronizer"
metadata = sa.MetaData(
    naming_convention={
        "pk": "%(table_name)s_pk",
        "uq": "%(table_name)s_%(column_0_N_name)s_key",
        "fk": "%(table_name)s_%(referred_table_name)s_fk",
        "ck": "%(table_name)s_%(constraint_name)s_check",
        "ix": "%(table_name)s_%(column_0_N_name)s_index",
    }
)
_NOW = sa.text("clock_timestamp()")


def _one_of(
    column: str, values: type[ExperimentState | ExperimentStageState | Role | VersionKind]
) -> str:
    return f"{column} IN ({', '.join(repr(str(value)) for value in values)})"


experiment = sa.Table(
    "experiment",
    metadata,
    sa.Column("id", sa.Uuid, primary_key=True),
    sa.Column("tenant", sa.Text, primary_key=True),
    sa.Column("label", sa.Text, nullable=False),
    sa.Column("plan", sa.Text, nullable=False),
    sa.Column("directory", sa.Text, nullable=False, server_default=""),
    sa.Column("state", sa.Text, nullable=False),
    sa.Column("reason", sa.Text, nullable=False),
    sa.Column("start_count", sa.BigInteger, nullable=False),
    sa.Column("created_at", pg.TIMESTAMP(timezone=True), nullable=False, server_default=_NOW),
    # The turn on a shared device; null if no device is shared.
    sa.Column("turn", pg.JSONB(none_as_null=True)),
    sa.UniqueConstraint("id"),
    sa.UniqueConstraint("tenant", "label"),
    sa.CheckConstraint(_one_of("state", ExperimentState), name="state"),
)

stage = sa.Table(
    "stage",
    metadata,
    sa.Column("experiment_id", sa.Uuid, primary_key=True),
    sa.Column("tenant", sa.Text, primary_key=True),
    sa.Column("name", sa.Text, primary_key=True),
    sa.Column("index", sa.Integer, nullable=False),
    sa.Column("state", sa.Text, nullable=False),
    sa.Column("roles", pg.ARRAY(sa.Text), nullable=False),
    sa.Column("finished_roles", pg.ARRAY(sa.Text), nullable=False),
    sa.Column("final_version", sa.BigInteger),
    sa.Column("final_incarnation", sa.BigInteger),
    sa.ForeignKeyConstraint(
        ["experiment_id", "tenant"], ["experiment.id", "experiment.tenant"], ondelete="CASCADE"
    ),
    sa.UniqueConstraint("experiment_id", "tenant", "index"),
    sa.CheckConstraint(_one_of("state", ExperimentStageState), name="state"),
    sa.CheckConstraint(
        "(final_version IS NULL) = (final_incarnation IS NULL)", name="final_version"
    ),
)

version = sa.Table(
    "version",
    metadata,
    sa.Column("experiment_id", sa.Uuid, primary_key=True),
    sa.Column("tenant", sa.Text, primary_key=True),
    sa.Column("stage", sa.Text, primary_key=True),
    sa.Column("incarnation", sa.BigInteger, primary_key=True),
    sa.Column("version", sa.BigInteger, primary_key=True),
    sa.Column("kind", sa.Text, nullable=False),
    sa.Column("base_version", sa.BigInteger, nullable=False),
    sa.Column("parent_version", sa.BigInteger, nullable=False),
    sa.Column("path", sa.Text, nullable=False),
    sa.Column("manifest_sha256", sa.LargeBinary, nullable=False),
    sa.Column("weights_sha256", sa.LargeBinary, nullable=False),
    sa.Column("weights_blake3", sa.LargeBinary, nullable=False, server_default=""),
    sa.Column("offer_address", sa.Text, nullable=False, server_default=""),
    sa.Column("offer_group", sa.Text, nullable=False, server_default=""),
    sa.Column("copy", sa.BigInteger, nullable=False, server_default="0"),
    sa.Column("damage", sa.Text, nullable=False, server_default=""),
    sa.Column("available", sa.Boolean, nullable=False),
    sa.Column("published_at", pg.TIMESTAMP(timezone=True), nullable=False, server_default=_NOW),
    sa.ForeignKeyConstraint(
        ["experiment_id", "tenant", "stage"],
        ["stage.experiment_id", "stage.tenant", "stage.name"],
        ondelete="CASCADE",
    ),
    sa.CheckConstraint(_one_of("kind", VersionKind), name="kind"),
)

member = sa.Table(
    "member",
    metadata,
    sa.Column("id", sa.Uuid, primary_key=True),
    sa.Column("role", sa.Text, nullable=False),
    sa.Column("address", sa.Text, nullable=False),
    sa.Column("experiment_id", sa.Uuid, index=True),
    sa.Column("stage", sa.Text, nullable=False),
    sa.Column("activity", sa.Text, nullable=False),
    sa.Column("phase", sa.Text, nullable=False),
    sa.Column("version", sa.BigInteger, nullable=False),
    sa.Column("pinned_versions", pg.ARRAY(sa.BigInteger), nullable=False),
    sa.Column("waits", pg.JSONB, nullable=False),
    sa.Column("last_heard", pg.TIMESTAMP(timezone=True), nullable=False, server_default=_NOW),
    # Of the token that it reports with; empty for all tenants.
    sa.Column("tenant", sa.Text, nullable=False),
    sa.CheckConstraint(_one_of("role", Role), name="role"),
)

closed_wait = sa.Table(
    "closed_wait",
    metadata,
    sa.Column("member_id", sa.Uuid, primary_key=True),
    sa.Column("number", sa.BigInteger, primary_key=True),
    # Null where the process worked on no experiment; the tenant is that of its token then.
    sa.Column("experiment_id", sa.Uuid),
    sa.Column("tenant", sa.Text, nullable=False),
    sa.Column("role", sa.Text, nullable=False),
    sa.Column("address", sa.Text, nullable=False),
    sa.Column("stage", sa.Text, nullable=False),
    sa.Column("owner", sa.Text, nullable=False),
    sa.Column("waits_for", sa.Text, nullable=False),
    sa.Column("reason", sa.Text, nullable=False),
    sa.Column("waited_seconds", sa.Double, nullable=False),
    sa.Column("ended_at", pg.TIMESTAMP(timezone=True), nullable=False),
    sa.ForeignKeyConstraint(
        ["experiment_id", "tenant"], ["experiment.id", "experiment.tenant"], ondelete="CASCADE"
    ),
    sa.Index(None, "experiment_id", "ended_at"),
    sa.Index(None, "ended_at"),
    sa.CheckConstraint(_one_of("role", Role), name="role"),
)
