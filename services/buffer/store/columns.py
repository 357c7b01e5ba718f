"""Columns, keys and the metadata that the tables of the schema share."""

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import TIMESTAMP

metadata = sa.MetaData(
    naming_convention={
        "pk": "%(table_name)s_pk",
        "uq": "%(table_name)s_%(column_0_N_name)s_uq",
        "ix": "%(table_name)s_%(column_0_N_name)s_ix",
    }
)

UUID = sa.Uuid(as_uuid=False)
TIME = TIMESTAMP(timezone=True)
NOW = sa.func.clock_timestamp()
STAGE_KEY = ("tenant", "experiment_id", "stage")
HOT_UPDATE_ROOM = {"fillfactor": 50}
"""Free space in the pages of tables whose updates change no indexed column: an update within its
page writes no index entry (HOT)."""


def id_first_key(name: str) -> sa.PrimaryKeyConstraint:
    """Builds the primary key of rows that are looked up by id: the id first, then the stage."""
    return sa.PrimaryKeyConstraint(name, *STAGE_KEY)


def stage_key() -> tuple[sa.Column[str], sa.Column[str], sa.Column[str]]:
    return (
        sa.Column("tenant", sa.Text, primary_key=True),
        sa.Column("experiment_id", UUID, primary_key=True),
        sa.Column("stage", sa.Text, primary_key=True),
    )


def moment(name: str) -> sa.Column[object]:
    return sa.Column(name, TIME, nullable=False, server_default=NOW)


def bigint(name: str, default: int = 0) -> sa.Column[int]:
    return sa.Column(name, sa.BigInteger, nullable=False, server_default=str(default))


def flag(name: str) -> sa.Column[bool]:
    return sa.Column(name, sa.Boolean, nullable=False, server_default=sa.false())


def text(name: str) -> sa.Column[str]:
    return sa.Column(name, sa.Text, nullable=False, server_default="")
