"""The trainer service with ranks that have no model: python -m tests.support.model_free.trainer"""

import sys

from services.trainer import __main__ as trainer
from services.trainer.control.gang import Gang, StartGang
from services.trainer.settings import TrainerSettings
from trinity.interpreter import module_command

RANK_COMMAND = tuple(module_command("tests.support.model_free.rank"))


def _starter(settings: TrainerSettings) -> StartGang:
    async def start(num_ranks: int) -> Gang:
        return await Gang.start(
            num_ranks=num_ranks,
            log_level=settings.log_level,
            log_format=settings.log_format,
            command=RANK_COMMAND,
        )

    return start


if __name__ == "__main__":
    trainer._starter = _starter
    sys.exit(trainer.main())
