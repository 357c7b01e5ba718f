"""Sessions of clients, whose calls get rewards one by one and are committed in groups."""

from alembic import op

revision = "0105"
down_revision: str | None = "0104"

UPGRADE = """\
ALTER TABLE session ALTER COLUMN assignment_id DROP NOT NULL, ALTER COLUMN run DROP NOT NULL,
    ADD COLUMN client text, ADD COLUMN token uuid;
ALTER TABLE turn ADD COLUMN call_id uuid, ADD COLUMN task text, ADD COLUMN reward double precision,
    ADD COLUMN assignment_id uuid, ADD COLUMN run integer;
CREATE INDEX turn_assignment_ix ON turn (assignment_id, tenant, experiment_id, stage)
    WHERE assignment_id IS NOT NULL"""
DOWNGRADE = """\
DELETE FROM turn WHERE call_id IS NOT NULL;
DELETE FROM session WHERE client IS NOT NULL;
ALTER TABLE turn DROP COLUMN call_id, DROP COLUMN task, DROP COLUMN reward,
    DROP COLUMN assignment_id, DROP COLUMN run;
ALTER TABLE session ALTER COLUMN assignment_id SET NOT NULL, ALTER COLUMN run SET NOT NULL,
    DROP COLUMN client, DROP COLUMN token"""


def upgrade() -> None:
    _execute(UPGRADE)


def downgrade() -> None:
    _execute(DOWNGRADE)


def _execute(statements: str) -> None:
    for statement in statements.split(";\n"):
        op.execute(statement)
