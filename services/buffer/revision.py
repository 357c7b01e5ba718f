"""The content of a sample after operators; the stored original is never changed."""

from trinity.api.v1 import experience_pb2 as pb


def revised(body: bytes, *, reward: float | None, is_masked: bool) -> bytes:
    """Returns the wire bytes with the new reward, if any, and with all tokens masked, if asked."""
    if reward is None and not is_masked:
        return body
    message = pb.Experience.FromString(body)
    if reward is not None:
        message.reward = reward
    if is_masked:
        for sequence in _sequences(message):
            sequence.action_mask.data = bytes(len(sequence.action_mask.data))
    return message.SerializeToString(deterministic=True)


def _sequences(message: pb.Experience) -> list[pb.Sequence]:
    if message.HasField("sequence"):
        return [message.sequence]
    return [message.pair.chosen, message.pair.rejected]
