"""Experiences with the fields of Trinity-RFT's, which workflows read, change and build.

    Experience(tokens=answer.tokens, prompt_length=answer.prompt_length, logprobs=answer.logprobs)

One that repeats an answer of this run is that answer, with everything that the engine said of it.
Any other is built by the workflow: it is marked, and its version is that of the run.

Shapes: L tokens of a sequence, P of them prompt, R = L - P response tokens.
"""

import contextlib
import copy
import dataclasses
import sys
import uuid
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from trinity import types
from trinity.errors import UserError
from trinity.types import Alignment, Array, FinishReason, Pair, Sequence

TEACHER_LOGPROBS = "teacher_logprobs"
PROMPT_TRUNCATED, RESPONSE_TRUNCATED = "prompt_truncated", "response_truncated"
_STATUS = {
    FinishReason.PROMPT_TRUNCATED: PROMPT_TRUNCATED,
    FinishReason.LENGTH: RESPONSE_TRUNCATED,
}
_REASONS = {status: reason for reason, status in _STATUS.items()}
OURS = frozenset(own.name for own in dataclasses.fields(types.Experience)) - {"eid"}
NOT_TRAINED: Mapping[str, str] = {
    "token_level_reward": "a reward is one number a sample: set `reward`",
    "advantages": "advantages are computed from rewards: set `reward`, or write an advantage",
    "returns": "returns are computed from rewards: set `reward`",
    "multi_modal_inputs": "prompts are text",
    "routed_experts": "routing is not replayed",
}
"""Fields that nothing reads after the workflow, with what to do instead."""
UNREAD = ("messages", "tools", "chosen_messages", "rejected_messages")
"""Fields that describe the tokens and change nothing."""


@dataclass
class EID:
    """The place of an experience; a workflow that makes several runs sets `run`."""

    batch: int | str = ""
    task: int | str = ""
    run: int = 0
    step: int = 0
    suffix: str = field(default_factory=lambda: uuid.uuid4().hex[:6])

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


@dataclass(frozen=True)
class CustomField:
    """A value of `info` that reaches the trainer as an array."""

    source_field: str
    destination_field: str
    data_type: Any


class Experience(types.Experience):
    """An experience whose tokens, log-probabilities and mask are tensors of its own fields."""

    def __init__(self, *, tokens: Any = None, prompt_length: int = 1, **fields: Any) -> None:
        """Builds one from Trinity-RFT's fields, or from ours with `body`."""
        ours = {name: fields.pop(name) for name in OURS & fields.keys()}
        if "body" not in ours and tokens is None:
            raise TypeError("an Experience is built of `tokens`: give token ids")
        self._lacks_logprobs = "body" not in ours and fields.get("logprobs") is None
        self._others: dict[str, Any] = dict.fromkeys((*NOT_TRAINED, *UNREAD))
        self.custom_fields: list[CustomField] = list(fields.pop("custom_fields", None) or [])
        self.further: list[Experience] = []
        """Further samples of the same conversation, whose turns are not one sequence."""
        self.origin: types.Experience | None = None
        """The answer of the engine, or the sample of its answers, that it was made of."""
        self._is_multi_turn = "body" not in ours and fields.get("action_mask") is not None
        body = ours.pop("body", None) or _body(tokens, int(prompt_length), fields)
        ours["info"] = _dict_of(ours.get("info"))
        ours["metrics"] = _dict_of(ours.get("metrics"))
        super().__init__(body=body, **ours)
        place: Any = fields.pop("eid", None) or EID()
        self.eid = place if not isinstance(place, dict) else _of_dict(place)
        self._set_rest(fields)

    def _set_rest(self, fields: Mapping[str, Any]) -> None:
        known = {"truncate_status", "teacher_logprobs", *self._others}
        if unknown := sorted(fields.keys() - known - _OF_BODY):
            raise TypeError(f"an Experience has no field {', '.join(unknown)}")
        for name in known & fields.keys():
            if fields[name] is not None:
                setattr(self, name, fields[name])

    @classmethod
    def of(cls, made: types.Experience) -> "Experience":
        """Returns an answer of the engine with these fields, which may be changed: it is kept."""
        values = {name: copy.copy(getattr(made, name)) for name in OURS}
        experience = cls(**{**values, "body": _copied(made.body)})
        experience.origin = made
        return experience

    __eq__ = object.__eq__
    __hash__ = object.__hash__

    def __getattr__(self, name: str) -> Any:
        """Returns a field that describes the experience alone; None until it is set."""
        if name in NOT_TRAINED or name in UNREAD:
            return self._others[name]
        raise AttributeError(f"an experience has no `{name}`")

    def __setattr__(self, name: str, value: Any) -> None:
        """Sets a field."""
        if name in NOT_TRAINED or name in UNREAD:
            self._others[name] = value
        else:
            super().__setattr__(name, value)

    @property
    def tokens(self) -> Any:
        """Token ids, [L] int32; of a pair, its prompt."""
        body = self.body
        side = body.chosen if isinstance(body, Pair) else body
        tokens_L = side.tokens if side is body else side.tokens[: side.prompt_length]
        return _tensor(tokens_L)

    @tokens.setter
    def tokens(self, tokens: Any) -> None:
        self.sequence.tokens = _array(tokens, np.int32)

    @property
    def prompt_length(self) -> int:
        """P, the number of tokens before the response."""
        body = self.body
        return (body.chosen if isinstance(body, Pair) else body).prompt_length

    @prompt_length.setter
    def prompt_length(self, length: int) -> None:
        self.sequence.prompt_length = int(length)

    @property
    def logprobs(self) -> Any:
        """Log-probabilities of the response's tokens, [R] float32; None if nothing gave them."""
        is_without = self._lacks_logprobs or isinstance(self.body, Pair)
        return None if is_without else _tensor(self.sequence.rollout_logprobs)

    @logprobs.setter
    def logprobs(self, logprobs: Any) -> None:
        self._lacks_logprobs = logprobs is None
        if logprobs is not None:
            self.sequence.rollout_logprobs = _array(logprobs, np.float32)

    @property
    def lacks_logprobs(self) -> bool:
        """True if it was built without log-probabilities."""
        return self._lacks_logprobs and not isinstance(self.body, Pair)

    @property
    def action_mask(self) -> Any:
        """True for each response token that is trained, [R]; None for a pair."""
        return None if isinstance(self.body, Pair) else _tensor(self.sequence.action_mask)

    @action_mask.setter
    def action_mask(self, mask: Any) -> None:
        self.sequence.action_mask = _array(mask, np.bool_)

    @property
    def response_text(self) -> str:
        """The response as text."""
        body = self.body
        return (body.chosen if isinstance(body, Pair) else body).response_text

    @response_text.setter
    def response_text(self, text: str) -> None:
        self.sequence.response_text = text

    @property
    def prompt_text(self) -> str:
        """The prompt as text."""
        body = self.body
        return (body.chosen if isinstance(body, Pair) else body).prompt_text

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
        return None if found is None else _tensor(found.data)

    @teacher_logprobs.setter
    def teacher_logprobs(self, logprobs: Any) -> None:
        self.arrays[TEACHER_LOGPROBS] = Array(_array(logprobs, np.float32), Alignment.RESPONSE)

    @property
    def experience_type(self) -> str:
        """`dpo` for a pair, `multi_turn` for one that was built with a mask, else `single_turn`."""
        if isinstance(self.body, Pair):
            return "dpo"
        return "multi_turn" if self._is_multi_turn else "single_turn"

    def to_dict(self) -> dict[str, Any]:
        """Returns the texts and the numbers, for logs."""
        return {
            "eid": self.eid,
            "prompt_text": self.prompt_text,
            "response_text": self.response_text,
            "prompt_length": self.prompt_length,
            "reward": self.reward,
            "truncate_status": self.truncate_status,
            "info": self.info,
            "metrics": self.metrics,
        }

    def check_fields(self) -> None:
        """Raises UserError for a field that was set and that nothing would read."""
        for name, advice in NOT_TRAINED.items():
            if self._others[name] is not None:
                raise UserError(f"an experience has `{name}`, which is not read: {advice}")


_OF_BODY = frozenset(
    {"logprobs", "action_mask", "response_text", "prompt_text", "chosen", "rejected"}
)


def _body(tokens: Any, prompt_length: int, fields: Mapping[str, Any]) -> Sequence | Pair:
    """Returns the tokens with their mask and log-probabilities, or a pair of answers to them."""
    tokens_L = _array(tokens, np.int32)
    texts = {name: fields.get(name) or "" for name in ("prompt_text", "response_text")}
    if fields.get("chosen") is not None and fields.get("rejected") is not None:
        sides = (_side(tokens_L, fields[name], texts) for name in ("chosen", "rejected"))
        return Pair(chosen=next(sides), rejected=next(sides))
    if fields.get("action_mask") is None and not 0 < prompt_length < len(tokens_L):
        raise ValueError(
            f"an Experience of {len(tokens_L)} tokens has prompt_length {prompt_length}: it needs "
            "a prompt and a response"
        )
    size = len(tokens_L) - prompt_length
    is_trained = fields.get("truncate_status") != PROMPT_TRUNCATED
    return Sequence(
        tokens=tokens_L,
        prompt_length=prompt_length,
        action_mask=_given(fields.get("action_mask"), np.full(size, is_trained, dtype=np.bool_)),
        rollout_logprobs=_given(fields.get("logprobs"), np.zeros(size, dtype=np.float32)),
        prompt_text=texts["prompt_text"],
        response_text=texts["response_text"],
    )


def _copied(body: Sequence | Pair) -> Sequence | Pair:
    """Returns a body with arrays of its own."""
    if isinstance(body, Pair):
        return copy.deepcopy(body)
    return dataclasses.replace(
        body,
        tokens=body.tokens.copy(),
        action_mask=body.action_mask.copy(),
        rollout_logprobs=body.rollout_logprobs.copy(),
    )


def _side(prompt_P: types.IntArray, answer: Any, texts: Mapping[str, str]) -> Sequence:
    answer_R = _array(answer, np.int32)
    return Sequence(
        tokens=np.concatenate([prompt_P, answer_R]),
        prompt_length=len(prompt_P),
        action_mask=np.ones(len(answer_R), dtype=np.bool_),
        rollout_logprobs=np.zeros(len(answer_R), dtype=np.float32),
        prompt_text=texts["prompt_text"],
    )


def _given(value: Any, otherwise: Any) -> Any:
    return otherwise if value is None else _array(value, otherwise.dtype.type)


def _array(values: Any, dtype: Any) -> Any:
    """Returns a list, a tensor or an array as one dimension of this type."""
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(values, torch.Tensor):
        values = values.detach().cpu()
        values = (values.float() if values.is_floating_point() else values).numpy()
    return np.array(values, dtype=dtype).reshape(-1)


def preload_tensors() -> None:
    """Imports torch, which takes seconds, before a run's time is measured; without it does nothing.

    Only workflows that look at tensors need it.
    """
    with contextlib.suppress(ImportError):
        import torch  # noqa: F401


def _tensor(values: Any) -> Any:
    """Returns an array as a tensor over the same memory."""
    import torch  # only for those who use it

    if not values.flags.writeable:
        values = values.copy()
    return torch.from_numpy(values)


def _dict_of(given: Mapping[str, Any] | None) -> dict[str, Any]:
    """Returns the same dict, so that a workflow that keeps it may go on filling it."""
    return given if isinstance(given, dict) else dict(given or {})


def _of_dict(place: Mapping[str, Any]) -> Any:
    return EID(**place)


def plain_json(value: Any) -> Any:
    """Returns what a workflow put into `info` as JSON; of other objects their text."""
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, Mapping):
        return {str(key): plain_json(own) for key, own in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [plain_json(own) for own in value]
    if isinstance(value, np.generic):
        return value.item()
    torch = sys.modules.get("torch")
    if isinstance(value, np.ndarray) or (torch is not None and isinstance(value, torch.Tensor)):
        return value.tolist()
    return str(value)


def numbers_of(metrics: Mapping[str, Any] | None) -> dict[str, float]:
    """Returns the metrics that are numbers."""
    found = {}
    for name, value in (metrics or {}).items():
        try:
            found[str(name)] = float(value)
        except (TypeError, ValueError):
            continue
    return found


def further_samples(given: Iterable[Experience]) -> list[Experience]:
    """Returns experiences, each followed by the further samples of its conversation."""
    samples: list[Experience] = []
    for experience in given:
        samples.append(experience)
        for other in experience.further:
            other.reward = experience.reward
            other.info = {**experience.info, **other.info}
            samples.append(other)
    return samples
