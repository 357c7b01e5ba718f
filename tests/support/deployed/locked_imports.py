"""Whether a service does with the packages of its lock, in an environment that has more."""

import os
import subprocess
import sys
from pathlib import Path

REPOSITORY = Path(__file__).parents[3]

# Finds nothing of packages that the lock does not have, then imports all of the service.
_SCRIPT = """
import importlib, importlib.machinery, importlib.metadata as metadata, pkgutil, re, sys

service, lock = sys.argv[1:]
plain = lambda name: re.sub(r"[-_.]+", "-", name).lower()
locked = {plain(line.partition("==")[0]) for line in open(lock) if "==" in line}
owners = metadata.packages_distributions()

class Locked(importlib.machinery.PathFinder):
    @classmethod
    def find_spec(cls, name, path=None, target=None):
        packages = {plain(owner) for owner in owners.get(name.partition(".")[0], ())}
        if packages - {"trinity-services"} and not packages & locked:
            return None
        return super().find_spec(name, path, target)

sys.meta_path[sys.meta_path.index(importlib.machinery.PathFinder)] = Locked
name = "trinity.studio" if service == "studio" else f"services.{service}"
package = importlib.import_module(name)
for module in pkgutil.walk_packages(package.__path__, package.__name__ + "."):
    # The script of Streamlit's shows its page as soon as it is imported.
    if not module.name.endswith((".env", ".script.app")) and ".versions." not in module.name:
        importlib.import_module(module.name)
COMMANDS = ("trinity.cli.deploy", "trinity.cli.main")
for name in (*COMMANDS, "trinity.run.deploy.probe", "trinity.run.deploy.submission"):
    importlib.import_module(name)
if service == "synchronizer":
    importlib.import_module("trinity.run.deploy.accounts")
"""


def missing_from(lock: Path, service: str, *, seconds: float) -> str:
    """What the import of the whole service says, empty where the lock has all that it needs."""
    done = subprocess.run(
        [sys.executable, "-c", _SCRIPT, service, str(lock)],
        cwd=REPOSITORY,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=seconds,
    )
    return done.stderr if done.returncode else ""
