"""The socket between an engine that stays and the workflows that are tried on it.

A request is a line of JSON: `{"id": 7, "model": 0, "call": "generate", ...}`. Its answers carry the
same id: `{"id": 7, "delta": {...}}`, and at last `{"id": 7, "ok": {...}}` or
`{"id": 7, "error": "...", "kind": "UserError"}`. Model 0 is the policy, the others are the
auxiliary models. `{"id": 7, "call": "cancel"}` stops the work on an earlier request.
"""

import hashlib
import json
import os
import stat
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, TypeAlias

from services.explorer.engine.interface import EngineDied
from services.explorer.engines import StageModel, stage_models
from trinity.config.plan.stage_plan import StagePlan
from trinity.errors import Unavailable, UserError
from trinity.types import FinishReason, SamplingParams
from trinity.workflows.generation import Generation, GenerationDelta, Likeliest, Scores

Message: TypeAlias = dict[str, Any]
MAX_LINE_BYTES = 256 * 1024**2
MAX_SOCKET_PATH_BYTES = 107
ERRORS: Mapping[str, type[Exception]] = {
    "UserError": UserError,
    "Unavailable": Unavailable,
    "EngineDied": EngineDied,
}
"""Errors that keep their type across the socket; any other becomes a RuntimeError."""


def socket_folder() -> Path:
    """Returns this user's folder of sockets; it is made if it is missing.

    Raises: UserError when another user has made it.
    """
    base = os.environ.get("XDG_RUNTIME_DIR") or tempfile.gettempdir()
    folder = Path(base) / f"trinity-debug-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    found = folder.lstat()
    is_private = found.st_uid == os.getuid() and not stat.S_IMODE(found.st_mode) & 0o077
    if not is_private or folder.is_symlink():
        raise UserError(
            f"{folder} must be yours and closed to others (mode 0700), as one who can write there "
            "answers in place of the engine: remove it, or set XDG_RUNTIME_DIR to a folder of yours"
        )
    return folder


def socket_path(plan: StagePlan) -> Path:
    """Returns the socket of the engine that serves a stage's models.

    Raises: UserError when its path is longer than the system allows.
    """
    text = json.dumps([_identity(model) for model in stage_models(plan)]).encode()
    path = socket_folder() / f"{hashlib.sha256(text).hexdigest()[:16]}.sock"
    if (length := len(os.fsencode(path))) > MAX_SOCKET_PATH_BYTES:
        raise UserError(
            f"the path of a socket may have {MAX_SOCKET_PATH_BYTES} bytes, {path} has {length}: "
            "set XDG_RUNTIME_DIR to a folder of yours with a shorter path"
        )
    return path


def _identity(model: StageModel) -> list[object]:
    """Returns what two files must agree on to use the same engine."""
    return [model.name, model.path, model.max_len, model.chat_template, model.template_kwargs]


def encode(message: Message) -> bytes:
    """Returns a message as a line."""
    return json.dumps(message).encode() + b"\n"


def generation_to_json(generation: Generation) -> Message:
    """Converts a whole answer."""
    return asdict(generation)


def generation_from_json(fields: Message) -> Generation:
    """Converts it back."""
    return Generation(
        token_ids=fields["token_ids"],
        logprobs=fields["logprobs"],
        finish_reason=FinishReason(fields["finish_reason"]),
        likeliest=_likeliest(fields["likeliest"]),
    )


def delta_from_json(fields: Message) -> GenerationDelta:
    """Converts the next tokens of an answer."""
    return GenerationDelta(
        token_ids=fields["token_ids"],
        logprobs=fields["logprobs"],
        likeliest=_likeliest(fields["likeliest"]),
    )


def scores_from_json(fields: Message) -> Scores:
    """Converts log-probabilities of given tokens."""
    return Scores(logprobs=fields["logprobs"], likeliest=_likeliest(fields["likeliest"]))


def sampling_from_json(fields: Message) -> SamplingParams:
    """Converts sampling settings."""
    return SamplingParams(**{**fields, "stop": tuple(fields["stop"])})


def _likeliest(rows: Sequence[Sequence[Sequence[float]]]) -> Likeliest:
    return [[(int(token), value) for token, value in row] for row in rows]


def error_to_json(error: Exception) -> Message:
    """Converts an error to a message; `error_from_json` reads it."""
    kind = type(error).__name__
    text = str(error) if kind in ERRORS else f"{kind}: {error}"
    return {"error": text, "kind": kind}


def error_from_json(fields: Message) -> Exception:
    """Returns the error to raise."""
    return ERRORS.get(fields["kind"], RuntimeError)(fields["error"])
