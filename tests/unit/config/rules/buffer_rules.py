"""Data, and the trainer."""

from tests.unit.config.builders import DPO, SFT
from tests.unit.config.rules.case import (
    ADVICE,
    INPUT,
    NO_EFFECT,
    PLANNED,
    RENAMED,
    SILENT,
    at,
    evaluated,
    first,
    follows,
    refused,
    tasksets,
    told,
)
from trinity.config.schema.experiment import deep_merge

BUFFER = [
    follows("a batch of whole groups", {}, lambda plan: plan.train_batch_size == 32),
    *(
        refused(
            f"{name} without a batch size",
            at("buffer.train_batch_size", 0),
            "`buffer.train_batch_size` is missing",
            base,
        )
        for name, base in (("sft", SFT), ("dpo", DPO))
    ),
    refused("two kinds of tasksets", at(f"{INPUT}.tasksets", [{"path": "/d"}]), "are both given"),
    refused("no taskset", at(f"{INPUT}.taskset", None), "`mode: both` needs tasks to explore"),
    refused("a taskset without path", tasksets({"name": "a"}), "path` is missing"),
    follows(
        "tasksets have names",
        tasksets({"path": "/a"}, {"path": "/b"}),
        lambda plan: [one.name for one in plan.tasksets] == ["taskset_0", "taskset_1"],
    ),
    follows(
        "tasks to train on run as often as the algorithm says",
        at(f"{INPUT}.taskset.repeat_times", 3),
        first("repeat_times", 8),
        told=ADVICE,
        said="`algorithm.repeat_times: 8` counts",
    ),
    follows(
        "a taskset's own sampling",
        at(f"{INPUT}.taskset.rollout_args", {"temperature": 0.3, "max_tokens": 5}),
        lambda plan: (
            (
                plan.tasksets[0].sampling.temperature,
                plan.tasksets[0].sampling.max_tokens,
            )
            == (0.3, 5)
        ),
    ),
    follows("a workflow for all", {}, first("workflow", "simple_workflow")),
    follows(
        "a workflow of its own",
        at(f"{INPUT}.taskset.default_workflow_type", "math_workflow"),
        first("workflow", "math_workflow"),
    ),
    follows(
        "evaluation has its own workflow",
        deep_merge(evaluated(), at(f"{INPUT}.default_eval_workflow_type", "math_workflow")),
        lambda plan: plan.eval_tasksets[0].workflow == "math_workflow",
    ),
    follows(
        "a reward for all",
        at(f"{INPUT}.default_reward_fn_type", "math_reward"),
        first("reward", "math_reward"),
    ),
    told(
        "task_selector",
        at(f"{INPUT}.taskset.task_selector", {"selector_type": "shuffle"}),
        RENAMED,
        "data_selector",
        holds=lambda plan: plan.tasksets[0].selector.selector_type == "shuffle",
    ),
    refused(
        "an unknown selector",
        at(f"{INPUT}.taskset.data_selector", {"selector_type": "x"}),
        "selector_type",
    ),
    told(
        "files between explorer and trainer",
        at("buffer.trainer_input.experience_buffer", {"storage_type": "file", "path": "/x"}),
        SILENT,
        "",
        holds=lambda plan: plan.experience_buffer.storage_type == "queue",
    ),
    refused(
        "an auxiliary buffer without path",
        at("buffer.trainer_input.auxiliary_buffers", {"experts": {}}),
        "auxiliary_buffers.experts.path` is missing",
    ),
    follows(
        "epochs count rows where rows are data",
        {"buffer": {"total_steps": None, "total_epochs": 3}},
        lambda plan: plan.num_train_steps(num_rows=160) == 30,
        base=SFT,
    ),
    *(
        told(f"buffer.{name}", at(f"buffer.{name}", value), RENAMED, f"explorer_input.{name}")
        for name, value in (
            ("default_eval_workflow_type", "simple_workflow"),
            ("default_reward_fn_type", "math_reward"),
        )
    ),
    *(
        told(f"buffer.{name}", at(f"buffer.{name}", value), NO_EFFECT, f"buffer.{name}")
        for name, value in (("cache_dir", "x"), ("tokenizer_path", "x"))
    ),
]

TRAINER = [
    follows("micro-batches of two sequences", {}, lambda plan: plan.max_token_len_per_gpu >= 48),
    refused("unknown exports", at("trainer.save_hf_checkpoint", "x"), "save_hf_checkpoint"),
    told("exports", at("trainer.save_hf_checkpoint", "always"), NO_EFFECT, "every version"),
    refused("an unknown trainer", at("trainer.trainer_type", "x"), "trainer_type"),
    told("megatron", at("trainer.trainer_strategy", "megatron"), NO_EFFECT, "FSDP2 trains"),
    refused(
        "sequence parallelism",
        at("trainer.ulysses_sequence_parallel_size", 2),
        "does not divide the 1 rank that train",
    ),
    refused("no file of verl's", at("trainer.trainer_config_path", "/no"), "cannot read"),
    told(
        "a key of verl's that is not passed on",
        at("trainer.trainer_config.algorithm.use_pf_ppo", True),
        PLANNED,
        "is not given this key",
    ),
    told(
        "a key of verl's with a counterpart elsewhere",
        at("trainer.trainer_config.algorithm.gamma", 0.9),
        PLANNED,
        "give `algorithm.advantage_fn_args.gamma`",
    ),
    told(
        "a misspelt key of verl's",
        at("trainer.trainer_config.actor.grad_clp", 0.5),
        PLANNED,
        "did you mean `actor.grad_clip`?",
    ),
    *(
        told(name, at(f"model.{name}", value), NO_EFFECT, name)
        for name, value in (("fully_sharded_loras", True), ("max_cpu_loras", 2))
    ),
    *(
        told(key, at(f"{key}.sft_warmup_steps", 5), PLANNED, "`algorithm_type: sft`")
        for key in ("trainer", "buffer.trainer_input")
    ),
]
