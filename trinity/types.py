"""Types that users and services share: tasks, sequences, experiences, run results.

Shapes: L tokens of a sequence, P of them prompt, R = L - P response tokens.
"""

import hashlib
import re
import uuid
from collections.abc import Sequence as AbstractSequence
from dataclasses import dataclass, field
from enum import StrEnum

import numpy as np
import numpy.typing as npt

from trinity.runtime.json_values import JsonObject as JsonObject
from trinity.runtime.json_values import JsonValue as JsonValue

_FORM = "[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}"
CANONICAL_UUID = re.compile(_FORM)
"""Matching takes a seventh of the time of `uuid.UUID`, thousands of times per request."""
_MANY = re.compile(f"(?:{_FORM},)*")
_LENGTH = 36
LARGEST_REWARD = 1e30
"""Training computes with numbers up to 3e38; squares of larger rewards leave any range."""
IntArray = npt.NDArray[np.int32]
BoolArray = npt.NDArray[np.bool_]
FloatArray = npt.NDArray[np.float32]
ArrayData = npt.NDArray[np.generic]
ROUTED_EXPERTS = "routed_experts"
"""Array of an experience, along its response: [tokens, layers, k] experts plus 1; 0 is unknown."""
MAX_EXPERTS = 32766
"""Experts of a layer that such an array can tell apart."""
EXPERIENCE_NAMESPACE = uuid.UUID("0f4a1f6e-6a4b-5d0e-9a53-6d6e7e1d3a10")


def are_canonical(texts: AbstractSequence[str]) -> bool:
    """Returns true when each text is a canonical UUID; one match over all of them is faster."""
    joined = "".join(f"{text}," for text in texts)
    return len(joined) == (_LENGTH + 1) * len(texts) and _MANY.fullmatch(joined) is not None


def name_uuid(namespace: uuid.UUID, name: str) -> str:
    """Returns the text of `uuid.uuid5(namespace, name)` (RFC 9562, version 5) in half the time.

    Called once for each row that is sent, stored or derived.
    """
    digest = bytearray(
        hashlib.sha1(namespace.bytes + name.encode(), usedforsecurity=False).digest()
    )
    digest[6] = digest[6] & 0x0F | 0x50
    digest[8] = digest[8] & 0x3F | 0x80
    text = digest[:16].hex()
    return f"{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}"


class FinishReason(StrEnum):
    """The reason why a sequence ended; aborted and prompt-truncated ones are never trained on."""

    STOP = "stop"
    LENGTH = "length"
    ABORT = "abort"
    PROMPT_TRUNCATED = "prompt_truncated"


class Alignment(StrEnum):
    """The dimension that an array's first axis runs along."""

    TOKEN = "token"
    RESPONSE = "response"
    SEQUENCE = "sequence"
    SAMPLE = "sample"


@dataclass(frozen=True, slots=True, kw_only=True)
class StageKey:
    """Identifies a stage of an experiment."""

    tenant: str
    experiment_id: str
    stage: str


@dataclass(frozen=True, slots=True, kw_only=True)
class EID:
    """A sample's origin within an experiment."""

    stage: str
    explore_step: int
    position: int
    run: int
    attempt: int = 0
    step: int = 0
    suffix: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class VersionSpan:
    """The weights version that produced response tokens [start, end)."""

    start: int
    end: int
    version: int
    incarnation: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingParams:
    """Sampling settings of the engine; temperature 0 is greedy, top_k -1 and top_p 1 are off."""

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = -1
    max_tokens: int = 16
    seed: int = 0
    min_p: float = 0.0
    """Minimum probability of a token, relative to the likeliest one."""
    repetition_penalty: float = 1.0
    """Above 1, tokens of the prompt and the response become less likely."""
    presence_penalty: float = 0.0
    """Above 0, tokens that are in the response become less likely."""
    frequency_penalty: float = 0.0
    """Above 0, tokens become less likely by the number of times they are in the response."""
    stop: tuple[str, ...] = ()
    """Strings that end the response; their tokens are part of it, its text ends before them."""
    logprobs: int = 0
    """Number of likeliest tokens to return at each position, beside the sampled one."""
    json_schema: str = ""
    """JSON Schema that the response must match; tokens that break it are not sampled."""


@dataclass(frozen=True, slots=True)
class Array:
    """An array sent with an experience; services pass unknown ones through unchanged."""

    data: ArrayData
    alignment: Alignment = Alignment.SAMPLE


@dataclass(frozen=True, slots=True, kw_only=True)
class RoleSpan:
    """Tokens [start, end) of a sequence that came from a message of this role."""

    role: str
    start: int
    end: int


@dataclass(slots=True, kw_only=True)
class Sequence:
    """A prompt and its continuation, with exactly the engine's token ids.

    tokens [L] int32; action_mask [R] is true where the policy chose the token; rollout_logprobs [R]
    float32, after temperature and truncation, natural log. role_spans are those of the messages
    that a chat template wrote; without any, roles are not known.
    """

    tokens: IntArray
    prompt_length: int
    action_mask: BoolArray
    rollout_logprobs: FloatArray
    prompt_text: str = ""
    response_text: str = ""
    role_spans: tuple[RoleSpan, ...] = ()

    @property
    def response_length(self) -> int:
        """R, the number of tokens after the prompt."""
        return len(self.tokens) - self.prompt_length


@dataclass(slots=True, kw_only=True)
class Pair:
    """A preference between two continuations of one prompt; never split."""

    chosen: Sequence
    rejected: Sequence


@dataclass(frozen=True, slots=True, kw_only=True)
class BlobRef:
    """Content over 1 MiB, stored under its SHA-256."""

    name: str
    sha256: bytes
    size: int
    media_type: str


@dataclass(slots=True, kw_only=True)
class Experience:
    """One training sample of a run; workflows fill `reward`, `info` and `metrics`.

    `reward` None means that feedback comes later: the sample is not batched until then.
    """

    body: Sequence | Pair
    eid: EID | None = None
    reward: float | None = None
    reward_parts: dict[str, float] = field(default_factory=dict)
    finish_reason: FinishReason = FinishReason.STOP
    version_spans: tuple[VersionSpan, ...] = ()
    sampling: SamplingParams | None = None
    chat_template_sha256: bytes = b""
    tools_sha256: bytes = b""
    arrays: dict[str, Array] = field(default_factory=dict)
    info: JsonObject = field(default_factory=dict)
    metrics: dict[str, float] = field(default_factory=dict)
    blobs: tuple[BlobRef, ...] = ()
    reward_revision: int = 0
    trace_id: str = ""

    @property
    def sequence(self) -> Sequence:
        """The body of a sample that is one sequence.

        Raises: TypeError for a preference pair.
        """
        if not isinstance(self.body, Sequence):
            raise TypeError("this experience holds a pair, not a sequence")
        return self.body

    @property
    def response_text(self) -> str:
        """The response as text."""
        return self.sequence.response_text

    @property
    def prompt_text(self) -> str:
        """The prompt as text."""
        return self.sequence.prompt_text


def experience_id(assignment_id: str, run: int, attempt: int, step: int, suffix: str) -> str:
    """Returns a deterministic id: the same sample always has the same, however often it is sent."""
    return name_uuid(EXPERIENCE_NAMESPACE, f"{assignment_id}/{run}/{attempt}/{step}/{suffix}")
