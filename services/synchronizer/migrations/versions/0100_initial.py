"""The schema `synchronizer`: experiments, stages, weight versions, members, waits that ended."""

from alembic import op

revision = "0100"
down_revision: str | None = None

TABLES = """\
CREATE TABLE experiment (
    id uuid NOT NULL,
    tenant text NOT NULL,
    label text NOT NULL,
    plan text NOT NULL,
    state text NOT NULL,
    reason text NOT NULL,
    start_count bigint NOT NULL,
    created_at timestamptz DEFAULT clock_timestamp() NOT NULL,
    directory text DEFAULT '' NOT NULL,
    turn jsonb,
    CONSTRAINT experiment_pk PRIMARY KEY (id, tenant),
    CONSTRAINT experiment_id_key UNIQUE (id),
    CONSTRAINT experiment_tenant_label_key UNIQUE (tenant, label),
    CONSTRAINT experiment_state_check
        CHECK (state IN ('running', 'finished', 'failed', 'cancelled'))
);
CREATE TABLE closed_wait (
    member_id uuid NOT NULL,
    number bigint NOT NULL,
    experiment_id uuid,
    tenant text NOT NULL,
    role text NOT NULL,
    address text NOT NULL,
    stage text NOT NULL,
    owner text NOT NULL,
    waits_for text NOT NULL,
    reason text NOT NULL,
    waited_seconds float8 NOT NULL,
    ended_at timestamptz NOT NULL,
    CONSTRAINT closed_wait_pk PRIMARY KEY (member_id, number),
    CONSTRAINT closed_wait_experiment_fk FOREIGN KEY (experiment_id, tenant)
        REFERENCES experiment(id, tenant) ON DELETE CASCADE,
    CONSTRAINT closed_wait_role_check CHECK (role IN ('explorer', 'trainer', 'buffer'))
);
CREATE TABLE member (
    id uuid NOT NULL,
    role text NOT NULL,
    address text NOT NULL,
    experiment_id uuid,
    stage text NOT NULL,
    activity text NOT NULL,
    phase text NOT NULL,
    version bigint NOT NULL,
    pinned_versions bigint[] NOT NULL,
    waits jsonb NOT NULL,
    last_heard timestamptz DEFAULT clock_timestamp() NOT NULL,
    tenant text NOT NULL,
    CONSTRAINT member_pk PRIMARY KEY (id),
    CONSTRAINT member_role_check CHECK (role IN ('explorer', 'trainer', 'buffer'))
);
CREATE TABLE stage (
    experiment_id uuid NOT NULL,
    tenant text NOT NULL,
    name text NOT NULL,
    index integer NOT NULL,
    state text NOT NULL,
    roles text[] NOT NULL,
    finished_roles text[] NOT NULL,
    final_version bigint,
    final_incarnation bigint,
    CONSTRAINT stage_pk PRIMARY KEY (experiment_id, tenant, name),
    CONSTRAINT stage_experiment_id_tenant_index_key UNIQUE (experiment_id, tenant, index),
    CONSTRAINT stage_experiment_fk FOREIGN KEY (experiment_id, tenant)
        REFERENCES experiment(id, tenant) ON DELETE CASCADE,
    CONSTRAINT stage_final_version_check
        CHECK ((final_version IS NULL) = (final_incarnation IS NULL)),
    CONSTRAINT stage_state_check CHECK (state IN ('pending', 'running', 'finished', 'failed'))
);
CREATE TABLE version (
    experiment_id uuid NOT NULL,
    tenant text NOT NULL,
    stage text NOT NULL,
    incarnation bigint NOT NULL,
    version bigint NOT NULL,
    kind text NOT NULL,
    base_version bigint NOT NULL,
    parent_version bigint NOT NULL,
    path text NOT NULL,
    manifest_sha256 bytea NOT NULL,
    weights_sha256 bytea NOT NULL,
    available boolean NOT NULL,
    published_at timestamptz DEFAULT clock_timestamp() NOT NULL,
    offer_address text DEFAULT '' NOT NULL,
    offer_group text DEFAULT '' NOT NULL,
    copy bigint DEFAULT '0' NOT NULL,
    damage text DEFAULT '' NOT NULL,
    CONSTRAINT version_pk PRIMARY KEY (experiment_id, tenant, stage, incarnation, version),
    CONSTRAINT version_stage_fk FOREIGN KEY (experiment_id, tenant, stage)
        REFERENCES stage(experiment_id, tenant, name) ON DELETE CASCADE,
    CONSTRAINT version_kind_check CHECK (kind IN ('full', 'lora', 'delta'))
)"""
INDEXES = """\
CREATE INDEX closed_wait_ended_at_index ON closed_wait (ended_at);
CREATE INDEX closed_wait_experiment_id_ended_at_index ON closed_wait (experiment_id, ended_at);
CREATE INDEX member_experiment_id_index ON member (experiment_id)"""
DROPS = """\
DROP TABLE closed_wait, experiment, member, stage, version"""


def upgrade() -> None:
    for statements in (TABLES, INDEXES):
        _execute(statements)


def downgrade() -> None:
    _execute(DROPS)


def _execute(statements: str) -> None:
    for statement in statements.split(";\n"):
        op.execute(statement)
