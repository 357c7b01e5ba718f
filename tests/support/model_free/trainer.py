"""The trainer service with ranks that have no model: python -m tests.support.model_free.trainer"""

import sys
from collections.abc import Sequence

from services.trainer import __main__ as trainer
from services.trainer.__main__ import StartPart
from services.trainer.control.gang import StartGang
from services.trainer.settings import TrainerSettings
from trinity.runtime.process.child_process import module_command
from trinity.runtime.rpc.host_group import HostGroup

RANK_COMMAND = tuple(module_command("tests.support.model_free.rank"))
_start_gang, _start_part = trainer._starter, trainer._part_starter


def _starter(
    settings: TrainerSettings, hosts: HostGroup | None, command: Sequence[str] = ()
) -> StartGang:
    del command
    return _start_gang(settings, hosts, RANK_COMMAND)


def _part_starter(settings: TrainerSettings, command: Sequence[str] = ()) -> StartPart:
    del command
    return _start_part(settings, RANK_COMMAND)


if __name__ == "__main__":
    trainer._starter, trainer._part_starter = _starter, _part_starter
    sys.exit(trainer.main())
