"""The timer of Trinity-RFT's import path."""

import time
from collections.abc import MutableMapping


class Timer:
    """Notes how many seconds a block took.

    with Timer(metrics, "time/search"): ...
    """

    def __init__(self, metrics_dict: MutableMapping[str, float], key_name: str) -> None:
        self.metrics = metrics_dict
        self.key = key_name

    def __enter__(self) -> "Timer":
        """Starts it."""
        self.start_time = time.monotonic()
        return self

    def __exit__(self, *_: object) -> None:
        """Notes the time."""
        self.metrics[self.key] = time.monotonic() - self.start_time
