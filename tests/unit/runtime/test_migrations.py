"""What is known of a schema's revisions without Alembic, which a restart has no time for."""

import subprocess
import sys

import pytest
from alembic.config import Config
from alembic.script import ScriptDirectory

from services.buffer.migrations import MIGRATIONS as BUFFER
from services.synchronizer.__main__ import MIGRATIONS as SYNCHRONIZER
from trinity.runtime.migrations import Migrations


@pytest.mark.parametrize("migrations", [BUFFER, SYNCHRONIZER])
def test_the_newest_revision_is_the_one_that_alembic_ends_with(migrations: Migrations) -> None:
    config = Config()
    config.set_main_option("script_location", str(migrations.folder))
    assert ScriptDirectory.from_config(config).get_heads() == [migrations.newest]


@pytest.mark.parametrize("service", ["buffer", "synchronizer"])
def test_no_service_imports_alembic_until_there_is_something_to_migrate(service: str) -> None:
    code = f"import sys, services.{service}.__main__; print('alembic' in sys.modules)"
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert said.stdout.strip() == "False"
