"""The score of an answer, or of its steps, by a reward model of `explorer.auxiliary_models`."""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, Literal

from trinity.errors import UserError
from trinity.rewards.reward import RewardFn
from trinity.rewards.score import SCORE

StepReward = Literal["last", "min", "mean", "product", "sum"]
REDUCED: Mapping[StepReward, Callable[[Sequence[float]], float]] = {
    "last": lambda scores: scores[-1],
    "min": min,
    "mean": lambda scores: math.fsum(scores) / len(scores),
    "product": math.prod,
    "sum": math.fsum,
}
RAW = "model_score"
"""The metric of a score before it is scaled and clipped."""


class ModelReward(RewardFn):
    """`score` is the model's score of the chat with the answer: its logit after the last token, or,
    of several labels, the probability of `label`; then times `scale`, plus `shift`, within `clip`.

    step_reward: the answer is cut at `step_separator`, `step_tag` (else the separator) is put after
    each step, and the scores there are reduced to one: `last`, `min`, `mean`, `product` or `sum`.
    The metric `model_score` is the score before scaling, `model_steps` the number of steps.
    """

    in_thread: ClassVar[bool] = False
    sums_all: ClassVar[bool] = False

    def __init__(
        self,
        model: str | int | None = None,
        label: int = -1,
        step_reward: StepReward | None = None,
        step_separator: str = "\n\n",
        step_tag: str = "",
        scale: float = 1.0,
        shift: float = 0.0,
        clip: Sequence[float] = (),
    ) -> None:
        super().__init__()
        if step_reward is not None and step_reward not in REDUCED:
            known = ", ".join(REDUCED)
            raise UserError(f"model_reward: `step_reward: {step_reward}` is none of {known}")
        if not step_separator:
            raise UserError("model_reward: `step_separator` is empty: give the text between steps")
        if clip and (len(clip) != 2 or clip[0] > clip[1]):
            raise UserError(f"model_reward: `clip: {list(clip)}` is not the lowest and the highest")
        self._model, self._label = model, label
        self._step_reward = step_reward
        self._separator, self._tag = step_separator, step_tag or step_separator
        self._scale, self._shift, self._clip = scale, shift, tuple(clip)

    async def __call__(
        self,
        *,
        response: str,
        auxiliary_models: Sequence[Any] = (),
        messages: Sequence[Mapping[str, Any]] | None = None,
        prompt: str | None = None,
    ) -> dict[str, float]:
        """Returns part `score`, and metrics."""
        model = self._chosen(auxiliary_models)
        chat = list(messages or [{"role": "user", "content": str(prompt)}])
        if chat[-1]["role"] == "assistant":  # the answer continues it
            begun = str(chat.pop()["content"] or "")
            response = response if response.startswith(begun) else begun + response
        if self._step_reward is None:
            answered = [*chat, {"role": "assistant", "content": response}]
            return self._numbers(await model.rate(answered, label=self._label))
        steps = [step for step in response.split(self._separator) if step.strip()] or [response]
        scores = await model.rate_steps(chat, steps, tag=self._tag, label=self._label)
        reduced = REDUCED[self._step_reward](scores)
        return {**self._numbers(reduced), "model_steps": float(len(scores))}

    def _chosen(self, models: Sequence[Any]) -> Any:
        for place, model in enumerate(models):
            if model.scores if self._model is None else self._model in (model.name, place):
                return model
        raise UserError("model_reward finds no model that scores in `explorer.auxiliary_models`")

    def _numbers(self, raw: float) -> dict[str, float]:
        scaled = raw * self._scale + self._shift
        if self._clip:
            scaled = min(max(scaled, self._clip[0]), self._clip[1])
        return {SCORE: scaled, RAW: raw}
