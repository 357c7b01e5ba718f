"""The run as a whole, and names of old releases."""

from collections.abc import Callable

from tests.unit.config.rules.case import (
    ADVICE,
    INPUT,
    NO_EFFECT,
    PLANNED,
    RENAMED,
    at,
    first,
    follows,
    refused,
    told,
)
from trinity.config.plan.stage_plan import StagePlan
from trinity.config.schema.experiment import deep_merge


def reports_to(monitor: str) -> Callable[[StagePlan], bool]:
    return lambda plan: plan.config.monitor.monitor_type == monitor


THE_RUN = [
    refused("an unknown mode", {"mode": "all"}, "`mode`"),
    follows(
        "one GPU by turns is both, and says so",
        {"mode": "colocate"},
        lambda plan: plan.mode == "both" and plan.takes_turns,
    ),
    follows(
        "rollouts may be unfinished at a turn",
        deep_merge({"mode": "colocate"}, at("synchronizer.sync_offset", 1)),
        lambda plan: plan.takes_turns and plan.is_asynchronous,
    ),
    follows(
        "none is unfinished on policy",
        {"mode": "colocate"},
        lambda plan: plan.takes_turns and not plan.is_asynchronous,
    ),
    refused(
        "unfinished rollouts whose weights are forgotten",
        deep_merge(
            {"mode": "colocate"},
            deep_merge(
                at("synchronizer.sync_offset", 1), at("explorer.rollout_model.sleep_level", 2)
            ),
        ),
        "give `explorer.rollout_model.sleep_level: 1`, or `sync_offset: 0`",
    ),
    refused(
        "turns with versions that come when ready",
        deep_merge({"mode": "colocate"}, at("synchronizer.sync_style", "trainer_driven")),
        "give `fixed`",
    ),
    refused(
        "turns on several machines",
        deep_merge({"mode": "colocate"}, at("cluster.node_num", 2)),
        "`cluster.node_num` is 2: give 1",
    ),
    refused(
        "turns of several ranks",
        deep_merge({"mode": "colocate"}, at("trainer.rank_num", 2)),
        "`trainer.rank_num` is 2: give 1",
    ),
    refused(
        "turns of several engines",
        deep_merge({"mode": "colocate"}, at("explorer.rollout_model.engine_num", 2)),
        "`explorer.rollout_model.engine_num` is 2: give 1",
    ),
    follows(
        "a relative root lies under the current directory",
        {"checkpoint_root_dir": "out"},
        lambda plan: plan.config.checkpoint_root_dir == "out",
    ),
    told("the namespace of Ray", {"ray_namespace": "x"}, NO_EFFECT, "no Ray"),
    told("a log's place", {"log": {"save_dir": "x"}}, NO_EFFECT, "log.save_dir"),
    refused("an unknown monitor", at("monitor.monitor_type", "x"), "`monitor.monitor_type`"),
    told("another monitor", at("monitor.monitor_type", "swanlab"), PLANNED, "SwanLab"),
    *(
        follows(
            f"figures go to {name}",
            at("monitor.monitor_type", name),
            reports_to(name),
        )
        for name in ("wandb", "mlflow", "tensorboard", "none")
    ),
    refused(
        "a monitor's unknown argument",
        {"monitor": {"monitor_type": "wandb", "monitor_args": {"base_ulr": "x"}}},
        "did you mean `base_url`?",
    ),
    refused(
        "an argument of another monitor",
        {"monitor": {"monitor_type": "mlflow", "monitor_args": {"api_key": "x"}}},
        "`mlflow` has no argument `monitor.monitor_args.api_key`",
    ),
    refused(
        "an argument that is no text",
        {"monitor": {"monitor_type": "mlflow", "monitor_args": {"uri": 5000}}},
        "`monitor.monitor_args.uri` must be a text",
    ),
    follows(
        "a trial without the monitor keeps its arguments",
        {"monitor": {"monitor_type": "none", "monitor_args": {"uri": "http://m"}}},
        lambda plan: plan.config.monitor.monitor_args == {"uri": "http://m"},
    ),
    follows(
        "a monitor that was switched off may have any argument",
        {"monitor": {"monitor_type": "none", "monitor_args": {"entity": "us"}}},
        lambda plan: plan.config.monitor.monitor_type == "none",
    ),
    told(
        "a run's name among a monitor's arguments",
        {"monitor": {"monitor_type": "wandb", "monitor_args": {"project": "sums"}}},
        ADVICE,
        "`monitor.monitor_args.project` does nothing: `project` at the top of the file says it",
    ),
    told("a monitor's directory", at("monitor.cache_dir", "x"), NO_EFFECT, "monitor.cache_dir"),
    told(
        "the memory validator's switch",
        {"ignore_validator_suggestions": True},
        NO_EFFECT,
        "never refuses a run",
    ),
]

OLDER = [
    follows(
        "rows of an expert",
        {
            "algorithm": {"algorithm_type": "mix"},
            "buffer": {"trainer_input": {"sft_warmup_dataset": {"path": "/d"}}},
        },
        lambda plan: [rows.name for rows in plan.auxiliary_buffers] == ["sft_dataset"],
        told=RENAMED,
        said="auxiliary_buffers.sft_dataset",
    ),
    follows(
        "a null is no other value",
        deep_merge(
            at(f"{INPUT}.default_workflow_type", None),
            at("buffer.default_workflow_type", "math_workflow"),
        ),
        first("workflow", "math_workflow"),
        told=RENAMED,
        said="explorer_input.default_workflow_type",
    ),
    *(
        told(key, at(key, value), status, said)
        for key, value, status, said in (
            ("algorithm.add_strategy", "x", PLANNED, "operators"),
            ("buffer.buffer_dir", "x", NO_EFFECT, "buffer_dir"),
            ("buffer.pad_token_id", 3, NO_EFFECT, "pad_token_id"),
            ("buffer.read_batch_size", 3, RENAMED, "buffer.train_batch_size"),
            ("buffer.trainer_input.experience_buffer.algorithm_type", "a", NO_EFFECT, "follows"),
            ("explorer.collect_experiences", True, NO_EFFECT, "always kept"),
            ("explorer.rollout_model.enable_prompt_truncation", False, RENAMED, "model.enable"),
            ("explorer.rollout_model.use_v1", False, NO_EFFECT, "one engine"),
            ("trainer.ppo_max_token_len_per_gpu", 64, RENAMED, "trainer.max_token_len_per_gpu"),
            ("trainer.actor_grad_clip", 0.5, RENAMED, "trainer.grad_clip"),
        )
    ),
]
