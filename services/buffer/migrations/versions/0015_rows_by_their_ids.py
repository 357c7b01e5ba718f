"""Assignments and experiences are found by id, whatever the statistics of their stage are."""

from alembic import op

revision = "0015"
down_revision: str | None = "0014"
STAGE_KEY = ("tenant", "experiment_id", "stage")
INDEX = "experience_assignment_ix"
IDS = {"assignment": "assignment_id", "experience": "experience_id"}


def upgrade() -> None:
    for table, name in IDS.items():
        op.drop_constraint(f"{table}_pk", table, type_="primary")
        op.create_primary_key(f"{table}_pk", table, [name, *STAGE_KEY])
    op.drop_index(INDEX, "experience")
    op.create_index(INDEX, "experience", ["assignment_id", *STAGE_KEY])


def downgrade() -> None:
    op.drop_index(INDEX, "experience")
    op.create_index(INDEX, "experience", [*STAGE_KEY, "assignment_id"])
    for table, name in IDS.items():
        op.drop_constraint(f"{table}_pk", table, type_="primary")
        op.create_primary_key(f"{table}_pk", table, [*STAGE_KEY, name])
