"""Types that users and services share: tasks, sequences, experiences, run results.

Shapes: L tokens of a sequence, P of them prompt, R = L - P response tokens.
"""

import copy
import dataclasses
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

import numpy as np
import numpy.typing as npt

from trinity.errors import UserError
from trinity.runtime.json_values import JsonObject as JsonObject
from trinity.runtime.json_values import JsonValue as JsonValue
from trinity.runtime.origin import Turn as Turn
from trinity.runtime.tensors import array_of, tensor_of
from trinity.runtime.uuids import name_uuid

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
TEACHER_LOGPROBS = "teacher_logprobs"
"""Array of an experience: another model's log-probabilities of the response's tokens."""
NOT_TRAINED: Mapping[str, str] = {
    "token_level_reward": "a reward is one number a sample: set `reward`",
    "advantages": "advantages are computed from rewards: set `reward`, or write an advantage",
    "returns": "returns are computed from rewards: set `reward`",
    "multi_modal_inputs": "give messages with images",
    "routed_experts": "routing is not replayed",
}
"""Fields of an experience that nothing reads after the workflow, with what to do instead."""
UNREAD = frozenset({"messages", "tools", "chosen_messages", "rejected_messages"})
"""Fields of an experience that describe its tokens and change nothing."""
_OF_BODY = {"logprobs", "action_mask", "response_text", "prompt_text", "chosen", "rejected"}
_UNSET: Any = None
_SET = {"truncate_status", "teacher_logprobs", "custom_fields"}


class FinishReason(StrEnum):
    """The reason why a sequence ended; aborted and prompt-truncated ones are never trained on."""

    STOP = "stop"
    LENGTH = "length"
    ABORT = "abort"
    PROMPT_TRUNCATED = "prompt_truncated"


RESPONSE_TRUNCATED = "response_truncated"
_STATUS = {
    FinishReason.PROMPT_TRUNCATED: FinishReason.PROMPT_TRUNCATED.value,
    FinishReason.LENGTH: RESPONSE_TRUNCATED,
}
_REASONS = {status: reason for reason, status in _STATUS.items()}


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


@dataclass(slots=True)
class EID:
    """The place of an experience; a workflow that makes several runs in one call sets `run`."""

    batch: int | str = ""
    """The explore step."""
    task: int | str = ""
    """The task's position in the explore step."""
    run: int = 0
    step: int = 0
    suffix: str = field(default_factory=lambda: uuid.uuid4().hex[:6])
    stage: str = ""
    attempt: int = 0

    @property
    def uid(self) -> str:
        """The experience."""
        return f"{self.rid}/{self.step}/{self.suffix}"

    @property
    def rid(self) -> str:
        """Its run."""
        return f"{self.tid}/{self.run}"

    @property
    def sid(self) -> str:
        """Its task and step: the same for all runs."""
        return f"{self.tid}/{self.step}"

    @property
    def tid(self) -> str:
        """Its task."""
        return f"{self.batch}/{self.task}"

    def __str__(self) -> str:
        """Returns the experience's place as text."""
        return self.uid

    def to_dict(self) -> dict[str, int | str]:
        """Returns its fields."""
        return dataclasses.asdict(self)


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
    """Number of likeliest tokens to return at each position, in addition to the sampled one."""
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
    """Content that is stored under its SHA-256; an image has the name `image`."""

    name: str
    sha256: bytes
    size: int
    media_type: str


@dataclass(frozen=True)
class CustomField:
    """A value of `info` that reaches the trainer as an array."""

    source_field: str
    destination_field: str
    data_type: Any


@dataclass(init=False, eq=False, kw_only=True)
class Experience:
    """One training sample of a run; workflows fill `reward`, `info` and `metrics`.

        Experience(tokens=answer.tokens, prompt_length=answer.prompt_length, reward=1.0)

    The model's answers are experiences, which a workflow may change and return. One that it builds
    of the same tokens is that answer; any other is marked. `tokens`, `logprobs` and `action_mask`
    are tensors over the arrays of `body`, made when they are read. `reward` None means that
    feedback comes later: the sample is not batched until then.
    """

    body: Sequence | Pair
    eid: EID
    reward: float | None
    reward_parts: dict[str, float]
    finish_reason: FinishReason
    version_spans: tuple[VersionSpan, ...]
    turns: tuple[Turn, ...]
    sampling: SamplingParams | None
    chat_template_sha256: bytes
    tools_sha256: bytes
    arrays: dict[str, Array]
    info: JsonObject
    metrics: dict[str, float]
    blobs: tuple[BlobRef, ...]
    reward_revision: int
    trace_id: str

    token_level_reward = _UNSET
    advantages = _UNSET
    returns = _UNSET
    multi_modal_inputs = _UNSET
    routed_experts = _UNSET
    messages = _UNSET
    tools = _UNSET
    chosen_messages = _UNSET
    rejected_messages = _UNSET

    def __init__(
        self,
        *,
        body: Sequence | Pair | None = None,
        tokens: Any = None,
        prompt_length: int = 1,
        eid: EID | Mapping[str, Any] | None = None,
        reward: float | None = None,
        reward_parts: dict[str, float] | None = None,
        finish_reason: FinishReason = FinishReason.STOP,
        version_spans: tuple[VersionSpan, ...] = (),
        turns: tuple[Turn, ...] = (),
        sampling: SamplingParams | None = None,
        chat_template_sha256: bytes = b"",
        tools_sha256: bytes = b"",
        arrays: dict[str, Array] | None = None,
        info: JsonObject | None = None,
        metrics: dict[str, float] | None = None,
        blobs: tuple[BlobRef, ...] = (),
        reward_revision: int = 0,
        trace_id: str = "",
        **of_tokens: Any,
    ) -> None:
        """Builds one from a body, or from `tokens` with Trinity-RFT's fields."""
        self.body = body if body is not None else body_of_tokens(tokens, prompt_length, of_tokens)
        self.eid = eid if isinstance(eid, EID) else EID(**eid or {})
        self.reward = reward
        self.reward_parts = _dict_of(reward_parts)
        self.finish_reason = finish_reason
        self.version_spans, self.turns = version_spans, turns
        self.sampling = sampling
        self.chat_template_sha256, self.tools_sha256 = chat_template_sha256, tools_sha256
        self.arrays = _dict_of(arrays)
        self.info = _dict_of(info)
        self.metrics = _dict_of(metrics)
        self.blobs = blobs
        self.reward_revision, self.trace_id = reward_revision, trace_id
        # The answer of the engine, or the sample of its answers, that it was made of.
        self.origin: Experience | None = None
        # Further samples of the same conversation, whose turns are not one sequence.
        self.further: list[Experience] = []
        self.custom_fields: list[CustomField] = []
        self.lacks_logprobs = body is None and of_tokens.get("logprobs") is None
        self._is_multi_turn = body is None and of_tokens.get("action_mask") is not None
        if of_tokens:
            self._set_rest(of_tokens)

    def _set_rest(self, fields: Mapping[str, Any]) -> None:
        known = _SET | NOT_TRAINED.keys() | UNREAD
        if unknown := sorted(fields.keys() - known - _OF_BODY):
            raise TypeError(f"an Experience has no field {', '.join(unknown)}")
        for name in known & fields.keys():
            if fields[name] is not None:
                setattr(self, name, fields[name])

    def copied(self) -> "Experience":
        """Returns a copy that may be changed, of which this one is the origin."""
        values = {own.name: copy.copy(getattr(self, own.name)) for own in dataclasses.fields(self)}
        made = Experience(**{**values, "body": _copied(self.body), "eid": EID()})
        made.origin = self
        return made

    @property
    def sequence(self) -> Sequence:
        """The body of a sample that is one sequence.

        Raises: TypeError for a preference pair.
        """
        if not isinstance(self.body, Sequence):
            raise TypeError("this experience holds a pair, not a sequence")
        return self.body

    @property
    def _side(self) -> Sequence:
        """The sequence; of a pair, the chosen one."""
        return self.body.chosen if isinstance(self.body, Pair) else self.body

    @property
    def tokens(self) -> Any:
        """Token ids, [L] int32; of a pair, its prompt."""
        side = self._side
        return tensor_of(side.tokens if side is self.body else side.tokens[: side.prompt_length])

    @tokens.setter
    def tokens(self, tokens: Any) -> None:
        self.sequence.tokens = array_of(tokens, np.int32)

    @property
    def prompt_length(self) -> int:
        """P, the number of tokens before the response."""
        return self._side.prompt_length

    @prompt_length.setter
    def prompt_length(self, length: int) -> None:
        self.sequence.prompt_length = int(length)

    @property
    def logprobs(self) -> Any:
        """Log-probabilities of the response's tokens, [R] float32; None if they are missing."""
        is_without = self.lacks_logprobs or isinstance(self.body, Pair)
        return None if is_without else tensor_of(self.sequence.rollout_logprobs)

    @logprobs.setter
    def logprobs(self, logprobs: Any) -> None:
        self.lacks_logprobs = logprobs is None
        if logprobs is not None:
            self.sequence.rollout_logprobs = array_of(logprobs, np.float32)

    @property
    def action_mask(self) -> Any:
        """True for each response token that is trained, [R]; None for a pair."""
        return None if isinstance(self.body, Pair) else tensor_of(self.sequence.action_mask)

    @action_mask.setter
    def action_mask(self, mask: Any) -> None:
        self.sequence.action_mask = array_of(mask, np.bool_)

    @property
    def response_text(self) -> str:
        """The response as text."""
        return self._side.response_text

    @response_text.setter
    def response_text(self, text: str) -> None:
        self.sequence.response_text = text

    @property
    def prompt_text(self) -> str:
        """The prompt as text."""
        return self._side.prompt_text

    @prompt_text.setter
    def prompt_text(self, text: str) -> None:
        self.sequence.prompt_text = text

    @property
    def truncate_status(self) -> str | None:
        """`prompt_truncated`, `response_truncated` or None."""
        return _STATUS.get(self.finish_reason)

    @truncate_status.setter
    def truncate_status(self, status: str | None) -> None:
        self.finish_reason = _REASONS.get(status or "", FinishReason.STOP)

    @property
    def teacher_logprobs(self) -> Any:
        """Another model's log-probabilities of the response's tokens, [R]; None without them."""
        found = self.arrays.get(TEACHER_LOGPROBS)
        return None if found is None else tensor_of(found.data)

    @teacher_logprobs.setter
    def teacher_logprobs(self, logprobs: Any) -> None:
        self.arrays[TEACHER_LOGPROBS] = Array(array_of(logprobs, np.float32), Alignment.RESPONSE)

    @property
    def experience_type(self) -> str:
        """`dpo` for a pair, `multi_turn` for one that was built with a mask, else `single_turn`."""
        alone = "multi_turn" if self._is_multi_turn else "single_turn"
        return "dpo" if isinstance(self.body, Pair) else alone

    def to_dict(self) -> dict[str, Any]:
        """Returns the texts and the numbers, for logs."""
        texts = ("eid", "prompt_text", "response_text", "prompt_length")
        names = (*texts, "reward", "truncate_status", "info", "metrics")
        return {name: getattr(self, name) for name in names}

    def check_fields(self) -> None:
        """Raises UserError for a field that is set but not read."""
        for name, advice in NOT_TRAINED.items():
            if getattr(self, name) is not None:
                raise UserError(f"an experience has `{name}`, which is not read: {advice}")


def body_of_tokens(tokens: Any, prompt_length: int, fields: Mapping[str, Any]) -> Sequence | Pair:
    """Returns tokens with their mask and log-probabilities, or a pair of answers to them."""
    if tokens is None:
        raise TypeError("an Experience is built of `tokens`: give token ids")
    tokens_L, prompt_length = array_of(tokens, np.int32), int(prompt_length)
    texts = [str(fields.get(name) or "") for name in ("prompt_text", "response_text")]
    size = len(tokens_L) - prompt_length
    if fields.get("chosen") is not None and fields.get("rejected") is not None:
        sides = [_of_pair(tokens_L, fields[own], texts[0]) for own in ("chosen", "rejected")]
        return Pair(chosen=sides[0], rejected=sides[1])
    if fields.get("action_mask") is None and not 0 < prompt_length < len(tokens_L):
        raise ValueError(
            f"an Experience of {len(tokens_L)} tokens has prompt_length {prompt_length}: it needs "
            "a prompt and a response"
        )
    is_trained = fields.get("truncate_status") != FinishReason.PROMPT_TRUNCATED
    return Sequence(
        tokens=tokens_L,
        prompt_length=prompt_length,
        action_mask=_given(fields.get("action_mask"), np.full(size, is_trained, dtype=np.bool_)),
        rollout_logprobs=_given(fields.get("logprobs"), np.zeros(size, dtype=np.float32)),
        prompt_text=texts[0],
        response_text=texts[1],
    )


def _of_pair(prompt_P: IntArray, answer: Any, prompt_text: str) -> Sequence:
    answer_R = array_of(answer, np.int32)
    return Sequence(
        tokens=np.concatenate([prompt_P, answer_R]),
        prompt_length=len(prompt_P),
        action_mask=np.ones(len(answer_R), dtype=np.bool_),
        rollout_logprobs=np.zeros(len(answer_R), dtype=np.float32),
        prompt_text=prompt_text,
    )


def _copied(body: Sequence | Pair) -> Sequence | Pair:
    """Returns a body with copies of its arrays."""
    if isinstance(body, Pair):
        return copy.deepcopy(body)
    arrays = ("tokens", "action_mask", "rollout_logprobs")
    return dataclasses.replace(body, **{name: getattr(body, name).copy() for name in arrays})


def _given(value: Any, otherwise: Any) -> Any:
    return otherwise if value is None else array_of(value, otherwise.dtype.type)


def _dict_of(given: Any) -> dict[str, Any]:
    """Returns the same dict, so that a workflow that keeps it may go on filling it."""
    return given if isinstance(given, dict) else dict(given or {})


def experience_id(assignment_id: str, run: int, attempt: int, step: int, suffix: str) -> str:
    """Returns a deterministic id: the same sample always has the same, however often it is sent."""
    return name_uuid(EXPERIENCE_NAMESPACE, f"{assignment_id}/{run}/{attempt}/{step}/{suffix}")
