"""The tables of tasksets: their tasks, and the state of their pipelines and selectors."""

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import JSONB

from services.buffer.store.columns import (
    UUID,
    bigint,
    flag,
    metadata,
    moment,
    stage_key,
)

taskset = sa.Table(  # Tasks under one name, submitted by a client or read from a file
    "taskset",
    metadata,
    sa.Column("tenant", sa.Text, primary_key=True),
    sa.Column("taskset_id", UUID, primary_key=True),
    sa.Column("name", sa.Text),
    sa.Column("source", sa.Text),
    sa.Column("is_complete", sa.Boolean, nullable=False),
    bigint("num_rows"),
    bigint("num_bytes"),
    moment("created_at"),
    flag("is_queue"),
    sa.Column("pipeline", JSONB),
    sa.UniqueConstraint("tenant", "source"),
    sa.UniqueConstraint("tenant", "name"),
)
taskset_upload = sa.Table(  # One upload of a taskset, by request id; a repeated one goes on here
    "taskset_upload",
    metadata,
    sa.Column("tenant", sa.Text, primary_key=True),
    sa.Column("request_id", UUID, primary_key=True),
    sa.Column("taskset_id", UUID, nullable=False),
    bigint("num_stored"),
    bigint("num_refused"),
    sa.Column("refused", JSONB, nullable=False, server_default="[]"),
    flag("is_complete"),
    moment("last_sent_at"),
    sa.Index(None, "tenant", "taskset_id"),
)
task = sa.Table(  # One task as JSON, at its row of the taskset
    "task",
    metadata,
    sa.Column("tenant", sa.Text, primary_key=True),
    sa.Column("taskset_id", UUID, primary_key=True),
    sa.Column("index", sa.BigInteger, primary_key=True, autoincrement=False),
    sa.Column("body", sa.Text, nullable=False),
)
task_feature = sa.Table(  # A number of every task that selectors read, as float64[num_rows]
    "task_feature",
    metadata,
    sa.Column("tenant", sa.Text, primary_key=True),
    sa.Column("taskset_id", UUID, primary_key=True),
    sa.Column("name", sa.Text, primary_key=True),
    sa.Column("numbers", sa.LargeBinary, nullable=False),
)
task_origin = sa.Table(  # Rows of the file that tasks of a pipeline came from, as int64
    "task_origin",
    metadata,
    sa.Column("tenant", sa.Text, primary_key=True),
    sa.Column("taskset_id", UUID, primary_key=True),
    sa.Column("first", sa.BigInteger, primary_key=True, autoincrement=False, server_default="0"),
    sa.Column("rows", sa.LargeBinary, nullable=False),
)
task_ranking = sa.Table(  # Row numbers in a learned order, as int64 (`domain/task_draws.py`)
    "task_ranking",
    metadata,
    *stage_key(),
    sa.Column("taskset", sa.Text, primary_key=True),
    sa.Column("rows", sa.LargeBinary, nullable=False),
)
task_beliefs = sa.Table(  # A learned selector's state, arrays by row (`domain/task_draws.py`)
    "task_beliefs",
    metadata,
    *stage_key(),
    sa.Column("taskset", sa.Text, primary_key=True),
    sa.Column("weak", sa.LargeBinary, nullable=False),
    sa.Column("strong", sa.LargeBinary, nullable=False),
    sa.Column("alpha", sa.LargeBinary, nullable=False),
    sa.Column("beta", sa.LargeBinary, nullable=False),
    sa.Column("capability", sa.Float),
    sa.Column("rho", sa.Float, nullable=False),
    bigint("num_updates"),
)
