"""Import paths of Trinity-RFT for operators, selectors and priorities; the service is elsewhere."""

from trinity.errors import UserError

_ADVICE = {
    "BufferReader": "rows come to the trainer by gRPC",
    "BufferWriter": "what a run makes is stored by the service",
    "get_buffer_reader": "`buffer.trainer_input` says what is read",
    "get_buffer_writer": "what a run makes is stored by the service",
}


def __getattr__(name: str) -> object:
    """Says what stands in the place of a name."""
    if name in _ADVICE:
        raise UserError(f"trinity.buffer.{name} of Trinity-RFT is not here: {_ADVICE[name]}")
    raise AttributeError(f"module {__name__} has no attribute {name}")
