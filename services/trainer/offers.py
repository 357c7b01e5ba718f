"""The newest weights, also from memory to memory; their files are written before."""

import logging
import threading

from services.trainer.weights import Exported
from trinity.transfer.offer import Limits, Offer
from trinity.transfer.sending import WeightsOffer

logger = logging.getLogger(__name__)

CLOSE_SECONDS = 5.0
"""Who has not got them by then takes the files."""


class Offers:
    """One version at a time: a newer one takes the place of the one before.

    Invariant: what is offered does not change, so it is a copy of what is trained.

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
        """Offer these; None where that cannot be, and files have to do."""
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
                "weights are not offered, explorers take the files",
                extra={"host": self._host, "reason": str(error)},
            )
            return None
        return self._newest.offer

    def close(self) -> None:
        """Offer nothing more, after a while for the transfer that goes on."""
        self._withdraw(CLOSE_SECONDS)

    def _withdraw(self, wait_seconds: float = 0.0) -> None:
        newest, self._newest = self._newest, None
        if newest is not None:
            newest.withdraw(wait_seconds)
