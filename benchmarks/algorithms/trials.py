"""The trials: every algorithm type as it is, and some with a correction for old rollouts."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from trinity.algorithm.rollout_correction.settings import PRESETS, PresetName
from trinity.algorithm.types import ALGORITHM_TYPES

Settings = Mapping[str, Any]

DATA = ("sft", "cpt", "dpo", "ipo", "simpo", "orpo")
"""Types that train on given rows."""
DISTILLATIONS = ("on_policy_distill", "grpo_distill", "jsd", "jensen_shannon", "vocabulary_distill")
"""Types that learn from a teacher."""
TEACHER = "the teacher"
"""Stands for the directory of a teacher in the trainer, which the job knows."""
CRITICS = ("ppo", "vapo", "pf_ppo")
NOT_TRIED = {"sdpo": "these tasks have no hints; `benchmarks.algorithms.beside` has one that has"}
"""Types that are left out, and why."""
IN_EVERY_TASK = (*CRITICS, "grpo", "rloo", "dapo", "cispo", "gspo", "opmd", "reinforceplusplus")
"""Types that are compared in all tasks; the others in the first one."""
OF_STEPS = ("multi_step_grpo", "gigpo")
"""Types for runs of several steps."""
WITHOUT_RATIO = ("opmd", "asymre", "rec", "raft", "sppo")
"""Types whose gradient is not weighed by who made the tokens; sppo's ratio only ends it."""
NO_AIM = {
    "jsd": "Trinity-RFT's default of lambda_coef turns from the teacher; at 0 it is to learn",
}
"""Trials that are shown and not expected to learn, and why."""
SETTINGS: Settings = {
    "repeat_times": 8,
    "optimizer": {"lr": 1.0e-4, "lr_warmup_steps": 10},
}
"""As in the addition example, for all alike."""
CRITIC: Settings = {"critic_warmup": 10, "critic": {"optimizer": {"lr": 1.0e-3}}}


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """An algorithm with its settings; the others are the algorithm's defaults."""

    name: str
    algorithm: Settings
    """Section `algorithm`."""
    trainer: Settings = field(default_factory=dict)
    """Section `trainer`."""

    @property
    def algorithm_type(self) -> str:
        """Name of the type."""
        return str(self.algorithm["algorithm_type"])

    @property
    def is_on_data(self) -> bool:
        """True if it trains on given rows."""
        return self.algorithm_type in DATA

    @property
    def has_teacher(self) -> bool:
        """True if rollouts carry a teacher's log-probabilities."""
        return self.algorithm_type in DISTILLATIONS

    @property
    def num_steps_of_run(self) -> int:
        """Experiences of a run."""
        return 2 if self.algorithm_type in OF_STEPS else 1

    @property
    def is_corrected(self) -> bool:
        """True if it weighs tokens of old rollouts; a trial that only rejects some does not."""
        if "rollout_correction" in self.algorithm:
            return bool(self.algorithm["rollout_correction"]["rollout_is"] != "none")
        return self.algorithm_type not in WITHOUT_RATIO

    @property
    def has_ratio(self) -> bool:
        """True if its gradient depends on who made the tokens."""
        return self.algorithm_type not in WITHOUT_RATIO and not self.is_on_data

    def lags(self, asked: Sequence[int]) -> Sequence[int]:
        """Returns the requested lags that apply to it; corrections are for old rollouts."""
        if self.is_on_data:
            return [lag for lag in asked if lag == 0]
        return [lag for lag in asked if lag or "rollout_correction" not in self.algorithm]


def all_trials() -> dict[str, Trial]:
    """Returns all trials by name, in the order of the table."""
    types = [_type(name) for name in ALGORITHM_TYPES.names() if name not in NOT_TRIED]
    uncorrected = [_corrected(name, "tis") for name in WITHOUT_RATIO]
    presets = [_corrected("grpo", preset) for preset in PRESETS]
    reverse = _type("jsd", "lambda_coef 0", advantage_fn_args={"lambda_coef": 0.0})
    trials = [*types, reverse, *uncorrected, *presets]
    return {trial.name: trial for trial in trials}


def trials_of(task: str, first: str) -> dict[str, Trial]:
    """Returns the trials of a task: all with rollouts in the `first` one, else the chosen ones."""
    with_rollouts = {name: trial for name, trial in all_trials().items() if not trial.is_on_data}
    if task == first:
        return with_rollouts
    return {name: trial for name, trial in with_rollouts.items() if name in IN_EVERY_TASK}


def _type(name: str, variant: str = "", **algorithm: object) -> Trial:
    settings = {**SETTINGS, "algorithm_type": name, **algorithm}
    if name == "vocabulary_distill":
        settings["distillation"] = {"model_path": TEACHER}
    if name in CRITICS:
        return Trial(name=name, algorithm={**settings, "repeat_times": 1}, trainer=CRITIC)
    return Trial(name=f"{name}, {variant}" if variant else name, algorithm=settings)


def _corrected(name: str, preset: PresetName) -> Trial:
    """The correction leads to the proximal policy, a ratio in the loss from there on."""
    correction = asdict(PRESETS[preset].settings)
    return _type(name, preset, bypass_old_logprobs=False, rollout_correction=correction)
