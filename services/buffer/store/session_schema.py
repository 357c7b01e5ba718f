"""The tables of sessions, which join those of `schema`."""

import sqlalchemy as sa

from services.buffer.store.schema import NOW, STAGE_KEY, TIME, UUID, metadata


def _own_key(id_name: str) -> list[sa.schema.SchemaItem]:
    """Builds the key of rows that are looked up by id."""
    return [
        sa.Column("tenant", sa.Text, nullable=False),
        sa.Column("experiment_id", UUID, nullable=False),
        sa.Column("stage", sa.Text, nullable=False),
        sa.Column(id_name, UUID, nullable=False),
        sa.PrimaryKeyConstraint(id_name, *STAGE_KEY),
    ]


session = sa.Table(  # The calls of a run over its address, or those of a client
    "session",
    metadata,
    *_own_key("session_id"),
    sa.Column("assignment_id", UUID),
    sa.Column("run", sa.Integer),
    sa.Column("opened_at", TIME, nullable=False, server_default=NOW),
    sa.Column("client", sa.Text),
    sa.Column("token", UUID),
    sa.Index("session_assignment_ix", "assignment_id", *STAGE_KEY),
)
sa.Index(
    "session_client_ix",
    *(session.c[name] for name in STAGE_KEY),
    postgresql_where=session.c.client.is_not(None),
)

turn = sa.Table(  # One answer of a session: a node of its tree; its body is in `payload`
    "turn",
    metadata,
    *_own_key("turn_id"),
    sa.Column("session_id", UUID, nullable=False),
    sa.Column("number", sa.BigInteger, sa.Identity(), nullable=False),
    sa.Column("parent_id", UUID),
    sa.Column("prompt_sha256", sa.LargeBinary, nullable=False),
    sa.Column("ordinal", sa.Integer, nullable=False),
    sa.Column("segment_id", sa.BigInteger, nullable=False),
    sa.Column("content_hash", sa.LargeBinary, nullable=False),
    sa.Column("created_at", TIME, nullable=False, server_default=NOW),
    # Of clients: the call, its reward, and the run that it was committed as.
    sa.Column("call_id", UUID),
    sa.Column("task", sa.Text),
    sa.Column("reward", sa.Double),
    sa.Column("assignment_id", UUID),
    sa.Column("run", sa.Integer),
    sa.Index("turn_session_ix", "session_id", *STAGE_KEY),
)
sa.Index(
    "turn_assignment_ix",
    turn.c.assignment_id,
    *(turn.c[name] for name in STAGE_KEY),
    postgresql_where=turn.c.assignment_id.is_not(None),
)
