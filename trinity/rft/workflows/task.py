"""A task as Trinity-RFT's workflows take it: settings that they may change, and the row."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from trinity.user_code.columns import optional_column
from trinity.workflows.task import truth_of

if TYPE_CHECKING:
    from trinity.rft.workflows.model import ModelWrapper
    from trinity.rft.workflows.workflow import Workflow


@dataclass
class FormatConfig:
    """Meaning of the columns."""

    prompt_type: Any = "messages"
    prompt_key: str = "prompt"
    response_key: str = "response"
    system_prompt_key: str | None = None
    system_prompt: str | None = None
    messages_key: str = "message"
    tools_key: str = "tools"
    image_key: str | None = None
    video_key: str | None = None
    reply_prefix: str | None = None
    workflow_key: str = ""
    reward_fn_key: str = ""
    chosen_key: str = "chosen"
    rejected_key: str = "rejected"
    enable_concatenated_multi_turn: bool = False
    chat_template: str | None = None
    enable_thinking: bool | None = None


@dataclass
class GenerationConfig:
    """Sampling of one taskset; `n` is the number of runs that the workflow makes."""

    temperature: float | None = None
    top_p: float | None = None
    top_k: int = -1
    logprobs: int | None = None
    max_tokens: int | None = None
    n: int = 1


@dataclass(eq=False)
class Task(dict):  # type: ignore[type-arg]  # a dict, as theirs is
    """One row of a taskset with its settings."""

    workflow: Any = None
    repeat_times: int | None = None
    format_args: FormatConfig = field(default_factory=FormatConfig)
    rollout_args: GenerationConfig = field(default_factory=GenerationConfig)
    workflow_args: dict[str, Any] = field(default_factory=dict)
    reward_fn_args: dict[str, Any] = field(default_factory=dict)
    is_eval: bool = False
    reward_fn: Any = None
    raw_task: Any = None
    batch_id: int | str = ""
    task_id: int | str = ""
    index: dict[str, Any] = field(default_factory=dict)

    @property
    def task_desc(self) -> Any:
        """The prompt, by the name of its column or a path into one; None if the row has none."""
        return optional_column(self.raw_task or {}, self.format_args.prompt_key)

    @property
    def truth(self) -> Any:
        """The true response, by the name of its column or a path; None if the row has none."""
        return truth_of(self.raw_task or {}, self.format_args.response_key)

    def to_dict(self) -> Any:
        """Returns the row."""
        return self.raw_task

    def to_workflow(
        self, model: "ModelWrapper", auxiliary_models: "list[ModelWrapper] | None" = None
    ) -> "Workflow":
        """Returns the task's workflow over these models."""
        made: Workflow = self.workflow(task=self, model=model, auxiliary_models=auxiliary_models)
        return made


class RewardParts(dict[str, float]):
    """The parts of a reward, which a workflow may add up; `beside` are numbers that are no part."""

    beside: Mapping[str, float] = {}
