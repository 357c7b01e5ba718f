"""The code that mutants are made of, by set, and the tests that should find them."""

from collections.abc import Mapping

_UNIT, _TRAINER = "tests/unit/algorithm", "tests/integration/trainer"
_LOSSES = tuple(
    f"{_UNIT}/policy_loss/test_{name}.py"
    for name in (
        "against_formula",
        "against_verl",
        "chosen_tokens",
        "examples",
        "figures",
        "pairs",
        "shares",
        "trust_regions",
        "value_loss",
    )
)
_TOKEN_ADVANTAGES = tuple(
    f"{_UNIT}/token_advantage/test_{name}.py"
    for name in (
        "against_formula",
        "against_verl",
        "field_formulas",
        "figures",
        "gdpo",
        "jensen_shannon",
        "registry",
        "runs_and_references",
    )
)
_UNITS = f"{_UNIT}/advantage/test_units.py"
_STEPS = tuple(
    f"{_TRAINER}/test_{name}.py"
    for name in (
        "adapter",
        "against_oracle",
        "chosen_tokens",
        "chunked_head",
        "corrections",
        "critic",
        "engine_settings",
        "experts",
        "float16",
        "followed_policy",
        "kl_steering",
        "learner",
        "moving_reference",
        "packed_rows",
        "passes",
        "plain_step",
        "rope",
        "routed_experts",
        "shared_prompts",
        "teacher",
        "updates",
    )
)
_ROWS = tuple(
    f"tests/unit/trainer/test_{name}.py"
    for name in (
        "bad_rows",
        "batch_rows",
        "batch_waits",
        "chat_families",
        "config_overrides",
        "cut_batches",
        "distillation",
        "estimation",
        "expert_balance",
        "expert_replay",
        "formatter",
        "formatter_memory",
        "gathered",
        "kl_control",
        "kto_rows",
        "layout",
        "lessons",
        "loss_scale",
        "packed_attention",
        "part_metrics",
        "parts",
        "rewritten_turns",
        "rollouts",
        "shared_prompts",
        "silences",
        "token_head",
        "token_values",
        "utilization",
    )
)
_TRAINING = (*_ROWS, *_STEPS)
_WORKFLOWS = (
    "tests/unit/workflows",
    "tests/unit/explorer/test_api_lengths.py",
    "tests/unit/explorer/test_auxiliary_models.py",
    "tests/unit/explorer/test_built_experiences.py",
    "tests/unit/explorer/test_hosted_runs.py",
    "tests/unit/explorer/test_hosted_styles.py",
    "tests/unit/explorer/test_rubric_judge_openai.py",
    "tests/unit/explorer/test_turns.py",
    "tests/unit/test_codec.py",
    "tests/unit/test_message_check.py",
    "tests/unit/test_wire_parts.py",
)
TARGETS: Mapping[str, Mapping[str, tuple[str, ...]]] = {
    "formulas": {
        "trinity/algorithm/aggregation.py": _LOSSES,
        "trinity/algorithm/value_loss.py": _LOSSES,
        "trinity/algorithm/advantage/*.py": (
            f"{_UNIT}/advantage/test_formulas.py",
            f"{_UNIT}/advantage/test_needs.py",
            f"{_UNIT}/advantage/test_reward_filter.py",
            _UNITS,
        ),
        "trinity/algorithm/kl/*.py": (f"{_UNIT}/kl", f"{_UNIT}/kl_control/test_penalty.py"),
        "trinity/algorithm/policy_loss/*.py": _LOSSES,
        "trinity/algorithm/token_advantage/*.py": (*_TOKEN_ADVANTAGES, _UNITS),
        "trinity/algorithm/token_selection/*.py": (f"{_UNIT}/token_selection", _LOSSES[2]),
    },
    "training": {
        "services/trainer/learner/*.py": _TRAINING,
        "services/trainer/backend/*.py": (*_TRAINING, f"{_TRAINER}/test_model_kinds.py"),
    },
    "rollouts": {
        "services/trainer/batch_rows.py": _ROWS,
        "services/trainer/data/*.py": _ROWS,
        "trinity/data/codec*.py": _WORKFLOWS,
        "trinity/workflows/*.py": _WORKFLOWS,
        "trinity/rft/workflows/*.py": _WORKFLOWS,
    },
    "algorithm": {
        f"trinity/algorithm/{part}/*.py": (f"{_UNIT}/{part}",)
        for part in ("advantage", "kl", "policy_loss", "token_advantage", "token_selection")
    },
    "config": {"trinity/config/**/*.py": ("tests/unit/config",)},
    "verl": {"trinity/verl/**/*.py": ("tests/unit/verl",)},
    "studio": {"trinity/studio/**/*.py": ("tests/unit/studio",)},
    "buffer": {"services/buffer/domain/*.py": ("tests/unit/buffer",)},
    "workflows": {"trinity/workflows/*.py": ("tests/unit/workflows", "tests/unit/explorer")},
    "explorer": {"services/explorer/**/*.py": ("tests/unit/explorer",)},
    "trainer": {"services/trainer/**/*.py": ("tests/unit/trainer",)},
}
"""By set and pattern of files."""
SKIPPED = frozenset(
    {"__init__", "validation", "json_codec", "needs", "need", "inputs", "controller"}
    | {"cpu", "resume_source", "document"}
)
"""Files without a formula, and those whose effect is outside of a process's numbers."""
LEFT_OUT = "not (token-sum or seq-mean-token-sum-norm or single_precision or thousand)"
"""Tests that repeat others with another way to add up, or take long."""
