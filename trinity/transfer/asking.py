"""An explorer's side of the rendezvous."""

import secrets
from datetime import timedelta

from trinity.errors import TransferFailed
from trinity.transfer.in_time import in_time
from trinity.transfer.offer import Limits, Offer, Receivers, Seat
from trinity.transfer.rendezvous import WITHDRAWN, Answer, Ask, Keys, open_store


def ask(offer: Offer, receivers: Receivers, *, limits: Limits, weights_sha256: bytes) -> Seat:
    """Asks for a transfer and waits for its turn; then the receivers must join at once. Blocks.

    Raises: TransferFailed.
    """
    store = open_store(offer.address, limits.join_seconds)
    keys = Keys(offer.group)
    question = Ask(
        id=secrets.token_hex(8), num_receivers=receivers.count, have_gpu=receivers.have_gpu
    )

    def asked() -> Answer:
        if store.check([keys.closed]):
            raise TransferFailed(WITHDRAWN)
        store.queue_push(keys.asks, question.model_dump_json())
        store.wait([keys.answer(question.id)], timedelta(seconds=limits.turn_seconds))
        return Answer.model_validate_json(store.get(keys.answer(question.id)))

    answer = in_time(limits.turn_seconds, "hear from the trainer", asked)
    if answer.refusal:
        raise TransferFailed(answer.refusal)
    return Seat(
        address=offer.address,
        group=keys.transfer(question.id),
        backend=answer.backend,
        num_ranks=answer.num_ranks,
        first_rank=1,
        limits=limits,
        weights_sha256=weights_sha256.hex(),
    )
