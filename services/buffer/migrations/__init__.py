"""Alembic's environment and revisions of the schema `buffer`."""

from pathlib import Path

from trinity.runtime.migrations import Migrations

MIGRATIONS = Migrations(
    folder=Path(__file__).parent, schema="buffer", program="python -m services.buffer migrate"
)
