"""Views for inspection, the last step that populations were compared at, groups that wait."""

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision: str | None = "0005"

COMPARED = sa.Column("compared_step", sa.BigInteger(), server_default="0", nullable=False)
SAMPLES = """
CREATE VIEW view_sample AS
SELECT e.tenant, e.experiment_id, e.stage, e.experience_id, e.parent_id,
    a.kind, a.taskset, a.task_index, e.assignment_id, e.explore_step, e.position, e.run, e.step,
    e.state, e.reason, e.reward, e.advantage, e.version_min, e.version_max,
    e.num_tokens, e.response_length, e.finish_reason, e.metrics, e.created_at
FROM experience e
JOIN assignment a USING (tenant, experiment_id, stage, assignment_id)
WHERE e.state <> 'derived'
"""
TRAINED = """
CREATE VIEW view_trained AS
SELECT i.tenant, i.experiment_id, i.stage, i.step AS train_step, i.position AS place,
    i.experience_id, i.taskset_id, i.row_index, a.taskset, a.task_index,
    e.explore_step, e.position, e.run, e.reward, i.advantage, i.weight, i.mean_ratio,
    i.trained_advantage, e.version_min, e.version_max, e.num_tokens, e.response_length,
    e.finish_reason
FROM batch_item i
JOIN stage s ON (s.tenant, s.experiment_id, s.stage, s.line)
    = (i.tenant, i.experiment_id, i.stage, i.line)
LEFT JOIN experience e ON (e.tenant, e.experiment_id, e.stage, e.experience_id)
    = (i.tenant, i.experiment_id, i.stage, i.experience_id)
LEFT JOIN assignment a ON (a.tenant, a.experiment_id, a.stage, a.assignment_id)
    = (e.tenant, e.experiment_id, e.stage, e.assignment_id)
"""
STEPS = """
CREATE VIEW view_step AS
SELECT b.tenant, b.experiment_id, b.stage, b.step AS train_step, b.num_rows,
    b.metrics AS batch_metrics, b.composed_at, r.incarnation AS trained_by,
    r.metrics AS train_metrics, r.reported_at
FROM batch b
JOIN stage s ON (s.tenant, s.experiment_id, s.stage, s.line)
    = (b.tenant, b.experiment_id, b.stage, b.line)
LEFT JOIN step_report r ON (r.tenant, r.experiment_id, r.stage, r.line, r.step)
    = (b.tenant, b.experiment_id, b.stage, b.line, b.step)
"""
TASKS = """
CREATE VIEW view_task AS
SELECT tenant, experiment_id, stage, taskset, task_index, count(*) AS num_samples,
    avg(reward) AS mean_reward, stddev_pop(reward) AS reward_std,
    avg(response_length) AS mean_response_length,
    count(*) FILTER (WHERE state = 'batched') AS num_trained
FROM view_sample
WHERE kind = 'train' AND state NOT IN ('superseded', 'late')
GROUP BY tenant, experiment_id, stage, taskset, task_index
"""
KEY = ["tenant", "experiment_id", "stage"]
WAITING = ("experience_waiting_ix", "experience")
WAITING_COLUMNS = [*KEY, "state", "explore_step", "position", "run", "step", "suffix"]
OPEN = ("pipeline_scope_open_ix", "pipeline_scope")
VIEWS = {"sample": SAMPLES, "trained": TRAINED, "step": STEPS, "task": TASKS}


def upgrade() -> None:
    op.add_column("stage", COMPARED)
    for statement in VIEWS.values():
        op.execute(statement)
    _make_indexes(waiting="'raw', 'ready', 'awaiting'", open_="'open', 'claimed', 'awaiting'")


def downgrade() -> None:
    for name in reversed(VIEWS):
        op.execute(f"DROP VIEW view_{name}")
    op.drop_column("stage", "compared_step")
    _make_indexes(waiting="'raw', 'ready'", open_="'open', 'claimed'")


def _make_indexes(*, waiting: str, open_: str) -> None:
    for (name, table), columns, states in (
        (WAITING, WAITING_COLUMNS, waiting),
        (OPEN, [*KEY, "opened_at"], open_),
    ):
        op.drop_index(name, table)
        op.create_index(name, table, columns, postgresql_where=sa.text(f"state IN ({states})"))
