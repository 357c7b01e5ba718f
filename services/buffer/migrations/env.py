"""Alembic's entry: compares with and migrates the tables of the buffer."""

from services.buffer.store import media_schema, session_schema  # noqa: F401 - they add their tables
from services.buffer.store.schema import metadata
from trinity.runtime.schema_revisions import run_environment

run_environment(metadata)
