"""Import paths of Trinity-RFT for operators, selectors and priorities; the service is elsewhere."""

from trinity.errors import UserError

_ADVICE = {
    "BufferReader": "rows come to the trainer by gRPC",
    "BufferWriter": "what a run makes is stored by the service",
    "get_buffer_reader": "`buffer.trainer_input` says what is read",
    "get_buffer_writer": "what a run makes is stored by the service",
}


def __getattr__(name: str) -> object:
    """Returns, for a name of Trinity-RFT's, a class that says what to do once it is called.

    A file that has such a name loads; a part that needs it is refused when it is named.
    """
    if name not in _ADVICE:
        raise AttributeError(f"module {__name__} has no attribute {name}")

    def refuse(*_: object, **__: object) -> None:
        raise UserError(f"trinity.buffer.{name} of Trinity-RFT is not here: {_ADVICE[name]}")

    return type(name, (), {"__init__": refuse})
