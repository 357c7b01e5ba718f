"""Entry point of Alembic."""

from services.synchronizer.tables import metadata
from trinity.runtime.schema_revisions import run_environment

run_environment(metadata)
