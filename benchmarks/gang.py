"""The trainer's gang of one rank, in this process."""

import os
import socket
import warnings
from datetime import timedelta
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from services.trainer.collectives import Ranks


def join_alone(num_threads: int = 1) -> "Ranks":
    """Import the trainer and form its process group, once a process; its arithmetic repeats."""
    warnings.simplefilter("ignore")  # verl's, ray's and torch's, which cannot be mended here
    import services.trainer.rank.stage  # noqa: F401  # imports verl
    from services.trainer.collectives import join_gang
    from services.trainer.learner.learner import make_deterministic
    from services.trainer.messages import LISTENER_VARIABLE

    listener = socket.create_server(("127.0.0.1", 0))
    os.environ |= {
        "RANK": "0",
        "LOCAL_RANK": "0",
        "WORLD_SIZE": "1",
        "LOCAL_WORLD_SIZE": "1",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(listener.getsockname()[1]),
        LISTENER_VARIABLE: str(listener.detach()),
    }
    make_deterministic(num_threads)
    return join_gang(timedelta(minutes=5))
