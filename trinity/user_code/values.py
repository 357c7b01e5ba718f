"""Values, failures, log lines and named parts that pass between explorer and users' processes."""

import base64
import importlib
import json
import logging
import os
import sys
import traceback
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from functools import lru_cache, reduce
from pathlib import Path
from types import FunctionType
from typing import Any, Generic, Self, TypeVar, cast

import numpy as np

from trinity.errors import UserError
from trinity.plugins import Registry
from trinity.runtime.folded_log import extras_of
from trinity.runtime.logs import is_users_file
from trinity.types import (
    EID,
    Array,
    Experience,
    FinishReason,
    JsonObject,
    Pair,
    Sequence,
)

ValueT = TypeVar("ValueT")
_OUR_FOLDER = Path(__file__).resolve().parents[1]
_OURS = tuple(str(Path(__file__).parents[2] / name) + os.sep for name in ("trinity", "services"))
"""Folders of our files, as tracebacks name them."""
MAX_TRACEBACK_CHARACTERS = 20_000
MAX_TEXT_CHARACTERS = 2000
"""Limit for a message: some hold a whole response, or a file."""
MAX_SENTENCE_CHARACTERS = 400
_TOKENS = "response_token"
_FINISH = "finish_reason"
_NOWHERE = EID(stage="nowhere", batch=0, task=0, suffix="")
MAX_LOGGED_CHARACTERS = 64 * 1024
"""Longest message and longest traceback; the rest is left out."""
Write = Callable[[Mapping[str, object]], None]


@dataclass(frozen=True, slots=True)
class PartRef(Generic[ValueT]):
    """A part by the name that the configuration has for it, and by where it is defined."""

    name: str
    module: str
    qualname: str

    @classmethod
    def of(cls, name: str, part: ValueT) -> Self:
        """Returns the reference to a part."""
        named = _named(part)
        return cls(name, named.__module__, named.__qualname__)

    def to_json(self) -> JsonObject:
        """Returns it for a line of JSON."""
        return asdict(self)

    def resolve(self, registry: Registry[ValueT]) -> ValueT:
        """Returns the part, with users' files loaded.

        Raises: UserError when this process does not have it.
        """
        try:
            return registry.get(self.name)
        except UserError:
            found = self._imported()
            if found is None:
                raise
            return found

    def _imported(self) -> ValueT | None:
        """Returns a part that was registered by code alone, from its module."""
        if "<" in self.qualname or self.module == "__main__":
            return None
        try:
            module = importlib.import_module(self.module)
            return cast(ValueT, reduce(getattr, self.qualname.split("."), module))
        except (ImportError, AttributeError):
            return None


def is_of_user(part: Callable[..., object]) -> bool:
    """Returns true for a class or function in a file that does not come with Trinity."""
    file = getattr(sys.modules.get(_named(part).__module__), "__file__", None)
    return file is None or not _comes_with_trinity(file)


@lru_cache(maxsize=1024)
def _comes_with_trinity(file: str) -> bool:
    """Asked for each run, and the file system has to be read for it."""
    return Path(file).resolve().is_relative_to(_OUR_FOLDER)


def _named(part: object) -> type | FunctionType:
    """Returns the part itself, or the class of an object."""
    return part if isinstance(part, type | FunctionType) else type(part)


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """An exception of users' code, and its place."""

    kind: str
    """Name of the exception's class."""
    text: str
    sentence: str
    """The exception with its message, on one line."""
    place: str
    """File and line; empty if unknown."""
    traceback: str

    @classmethod
    def of(cls, error: BaseException) -> "Failure":
        """Describes an error that was caught."""
        shown = "".join(traceback.format_exception(error))
        return cls(
            kind=type(error).__name__,
            text=text_of(error),
            sentence=_sentence_of(error),
            place=place_of(error),
            traceback=shown[-MAX_TRACEBACK_CHARACTERS:],
        )


def _sentence_of(error: BaseException) -> str:
    """Returns the exception and its message; a long message is cut, a file's lines are left out."""
    lines = "".join(traceback.format_exception_only(error)).split("\n")
    told = [line.strip() for line in lines if line.strip()] or [type(error).__name__]
    return told[-1] if isinstance(error, SyntaxError) else " ".join(told)[:MAX_SENTENCE_CHARACTERS]


class UserCodeFailed(Exception):
    """Raised where the result of users' code in another process was awaited."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(failure.sentence + failure.place)
        self.failure = failure


def text_of(error: BaseException) -> str:
    """Returns the beginning of an error's message, also where the error cannot make one."""
    try:
        return str(error)[:MAX_TEXT_CHARACTERS]
    except Exception:
        return "its message cannot be made"


def place_of(error: BaseException) -> str:
    """Returns file and line of an error in brackets: the last user file, if there is one.

    The error may come from a function called on that line, in a library or here.
    """
    frames = traceback.extract_tb(error.__traceback__)
    users = [frame for frame in frames if _is_in_users_file(frame.filename)]
    last = (users or frames)[-1:]
    return "".join(f" ({frame.filename}, line {frame.lineno})" for frame in last)


def _is_in_users_file(path: str) -> bool:
    return is_users_file(path) and not path.startswith(_OURS)


def encode_known(known: Mapping[str, object], reward: str) -> JsonObject:
    """Returns the values that a reward is called with, for a line of JSON.

    Raises: UserError for a value that JSON does not have.
    """
    return {name: _encoded(name, value, reward) for name, value in known.items()}


def decode_known(values: Mapping[str, Any]) -> dict[str, object]:
    """Returns the values as `encode_known` was given them."""
    known = dict(values)
    if known.get(_TOKENS) is not None:
        known[_TOKENS] = np.array(known[_TOKENS], dtype=np.int32)
    if known.get(_FINISH) is not None:
        known[_FINISH] = FinishReason(known[_FINISH])
    return known


def _encoded(name: str, value: object, reward: str) -> Any:
    if isinstance(value, np.ndarray | np.generic):
        return value.tolist()
    if isinstance(value, Mapping):
        return {str(key): _encoded(name, item, reward) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_encoded(name, item, reward) for item in value]
    if value is None or isinstance(value, str | bool | int | float):
        return value
    raise UserError(
        f"the reward {reward} is called with {name!r}, which holds a {type(value).__name__}: a "
        "reward runs in a process of its own and can be given texts, numbers, lists and objects"
    )


def experience_to_text(experience: Experience) -> str:
    """Returns a sample as text, without its place.

    Raises: ValueError when the sample contradicts itself.
    """
    from trinity.api.v1 import experience_pb2
    from trinity.data.codec import SampleRef, set_experience

    message = experience_pb2.Experience()
    placed = replace(experience, eid=_NOWHERE)
    ref = SampleRef(tenant="", experiment_id="", assignment_id="", taskset="", task_index=0)
    set_experience(message, placed, ref)
    return base64.b64encode(message.SerializeToString()).decode()


def experience_from_text(text: str) -> Experience:
    """Returns the sample, with arrays that may be changed.

    Raises: ValueError when the sample contradicts itself.
    """
    from trinity.api.v1 import experience_pb2
    from trinity.data.codec import experience_from_proto

    message = experience_pb2.Experience.FromString(base64.b64decode(text))
    experience = experience_from_proto(message)
    experience.eid = EID()
    experience.body = _writable(experience.body)
    experience.arrays = {
        name: Array(array.data.copy(), array.alignment) for name, array in experience.arrays.items()
    }
    return experience


def _writable(body: Sequence | Pair) -> Sequence | Pair:
    if isinstance(body, Pair):
        return Pair(chosen=_copied(body.chosen), rejected=_copied(body.rejected))
    return _copied(body)


def _copied(sequence: Sequence) -> Sequence:
    return replace(
        sequence,
        tokens=sequence.tokens.copy(),
        action_mask=sequence.action_mask.copy(),
        rollout_logprobs=sequence.rollout_logprobs.copy(),
    )


class LineSender(logging.Handler):
    """Sends each record as a message with the key `log`."""

    def __init__(self, write: Write) -> None:
        super().__init__()
        self._write = write

    def emit(self, record: logging.LogRecord) -> None:
        """Sends a record; what cannot be written is reported on standard error."""
        try:
            self._write({"log": _to_json(record)})
        except Exception:  # logging never fails the code that logs
            self.handleError(record)


def log_line(line: Mapping[str, Any]) -> None:
    """Logs a record that a process sent, as if it had been made here."""
    logger = logging.getLogger(line["name"])
    logger.handle(logging.makeLogRecord({**line["fields"], **line["record"], "name": logger.name}))


def _to_json(record: logging.LogRecord) -> JsonObject:
    shown = ""
    if record.exc_info:
        shown = logging.Formatter().formatException(record.exc_info)
    return {
        "name": record.name,
        "record": {
            "msg": record.getMessage()[:MAX_LOGGED_CHARACTERS],
            "levelno": record.levelno,
            "levelname": record.levelname,
            "created": record.created,
            "pathname": record.pathname,
            "lineno": record.lineno,
            "exc_text": shown[-MAX_LOGGED_CHARACTERS:] or None,
        },
        "fields": json.loads(json.dumps(extras_of(record), default=str)),
    }
