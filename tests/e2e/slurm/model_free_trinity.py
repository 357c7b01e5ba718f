"""`trinity` whose stacks have no model: python -m tests.e2e.slurm.model_free_trinity COMMAND..."""

import os

from tests.support.model_free.stack import MODULES, REPOSITORY
from trinity.cli.main import main
from trinity.run.local import services
from trinity.runtime.process.child_process import module_command


def _model_free(module: str) -> list[str]:
    return module_command(MODULES.get(module.removeprefix("services."), module))


if __name__ == "__main__":
    os.environ["PYTHONPATH"] = REPOSITORY
    setattr(services, "module_command", _model_free)  # noqa: B010 (an import of the module)
    main()
