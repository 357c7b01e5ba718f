"""Offers the newest weights for transfer from memory, after their files are written."""

import logging
import threading

from services.trainer.weights import Exported
from trinity.transfer.offer import Limits, Offer
from trinity.transfer.sending import WeightsOffer

logger = logging.getLogger(__name__)

CLOSE_SECONDS = 5.0
"""Explorers that have not received them by then load the files."""


class Offers:
    """Offers one version at a time; a newer one replaces the previous.

    Invariant: what is offered does not change, so it is a copy of the weights in training.

        offers = Offers(host="127.0.0.1", name="weights", limits=limits)
        announced = offers.begin(exported)
        offers.close()
    """

    def __init__(self, *, host: str, name: str, limits: Limits) -> None:
        self._host = host
        self._name = name
        self._limits = limits
        self._turn = threading.Lock()
        self._newest: WeightsOffer | None = None

    def begin(self, exported: Exported) -> Offer | None:
        """Offers these weights; returns None where that fails and explorers must load the files."""
        self._withdraw()
        try:
            self._newest = WeightsOffer(
                exported,
                host=self._host,
                name=self._name,
                limits=self._limits,
                turn=self._turn,
            )
        except (OSError, RuntimeError) as error:
            logger.warning(
                "weights are not offered, explorers load the files",
                extra={"host": self._host, "reason": str(error)},
            )
            return None
        return self._newest.offer

    def close(self) -> None:
        """Stops offering, after a short wait for a transfer under way."""
        self._withdraw(CLOSE_SECONDS)

    def _withdraw(self, wait_seconds: float = 0.0) -> None:
        newest, self._newest = self._newest, None
        if newest is not None:
            newest.withdraw(wait_seconds)
