"""A rank that ignores the lock of its device: python -m tests.support.model_free.unlocked_rank"""

import logging
import os

from services.trainer.rank import __main__
from tests.support.model_free.rank import model_free_parts
from trinity.runtime.device_lock import DeviceLock, Holder


def ignore_lock() -> None:
    """Replaces the lock's method by one that always succeeds."""

    def try_take(self: DeviceLock, holder: Holder) -> bool:
        del self, holder
        return True

    DeviceLock.try_take = try_take  # type: ignore[method-assign]


if __name__ == "__main__":
    ignore_lock()
    code = __main__.main(model_free_parts)
    logging.shutdown()
    os._exit(code)
