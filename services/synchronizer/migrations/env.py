"""Where Alembic enters."""

from services.synchronizer.tables import metadata
from trinity.migrations import run_environment

run_environment(metadata)
