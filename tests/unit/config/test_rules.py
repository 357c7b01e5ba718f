"""The rules that files for Trinity-RFT rely on: each is followed, mended, or spoken of.

A case changes a small configuration, and says what follows in the plan, what a file is told, or
both. Where a rule of Trinity-RFT surprises its users, the case holds what is done here instead.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.unit.config.builders import CPT, DPO, GRPO, SFT
from trinity.config.check import Report, check_file
from trinity.config.merging import deep_merge
from trinity.config.plan import StagePlan
from trinity.config.status import Status

Tree = Mapping[str, Any]
PLANNED, NO_EFFECT, RENAMED = Status.PLANNED, Status.NO_EFFECT, Status.RENAMED
MISTAKE, ADVICE, SILENT = "mistake", "advice", "nothing"


@dataclass(frozen=True, kw_only=True)
class Case:
    """One rule."""

    name: str
    changes: Tree = field(default_factory=dict)
    base: Tree = field(default_factory=lambda: GRPO)
    told: str = SILENT
    said: str = ""
    holds: Callable[[StagePlan], bool] = lambda _: True


def follows(name: str, changes: Tree, holds: Callable[[StagePlan], bool], **more: Any) -> Case:
    """Something follows in the plan."""
    return Case(name=name, changes=changes, holds=holds, **more)


def refused(name: str, changes: Tree, said: str, base: Tree = GRPO) -> Case:
    """The file is mistaken."""
    return Case(name=name, changes=changes, base=base, told=MISTAKE, said=said)


def told(name: str, changes: Tree, status: Status | str, said: str, **more: Any) -> Case:
    """The file is told something, and is right."""
    return Case(name=name, changes=changes, told=status, said=said, **more)


def at(path: str, value: object) -> dict[str, Any]:
    """A tree with one value."""
    first, _, rest = path.partition(".")
    return {first: at(rest, value) if rest else value}


INPUT = "buffer.explorer_input"
ROLLOUT = "explorer.rollout_model"
LENGTHS = ("max_model_len", "max_prompt_tokens", "max_response_tokens", "min_response_tokens")


def lengths(*given: int | None) -> dict[str, Any]:
    return {"model": {"max_model_len": None} | dict(zip(LENGTHS, given, strict=False))}


def have(*wanted: int) -> Callable[[StagePlan], bool]:
    return lambda plan: tuple(getattr(plan, name) for name in LENGTHS) == wanted


def part(name: str, value: object) -> Callable[[StagePlan], bool]:
    return lambda plan: getattr(plan.algorithm, name) == value


def first(name: str, value: object) -> Callable[[StagePlan], bool]:
    return lambda plan: getattr(plan.tasksets[0], name) == value


def tasksets(*given: Tree) -> dict[str, Any]:
    return {"buffer": {"explorer_input": {"taskset": None, "tasksets": list(given)}}}


def evaluated(**given: Any) -> dict[str, Any]:
    return {"buffer": {"explorer_input": {"eval_tasksets": [{"path": "/e", **given}]}}}


THE_RUN = [
    refused("an unknown mode", {"mode": "all"}, "`mode`"),
    told("mode colocate", {"mode": "colocate"}, PLANNED, "`mode: colocate`"),
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
            lambda plan, name=name: plan.config.monitor.monitor_type == name,
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
    told("a monitor's directory", at("monitor.cache_dir", "x"), NO_EFFECT, "monitor.cache_dir"),
    told(
        "the memory validator's switch",
        {"ignore_validator_suggestions": True},
        NO_EFFECT,
        "never refuses a run",
    ),
]

ALGORITHM = [
    refused("an unknown algorithm", at("algorithm.algorithm_type", "x"), "is not supported"),
    follows("parts of the algorithm's", {}, part("advantage_fn", "grpo")),
    follows(
        "a part that is given stays",
        at("algorithm.advantage_fn", "rloo"),
        part("advantage_fn", "rloo"),
    ),
    *(
        follows(
            f"{kind} has its own group size",
            {"algorithm": {"algorithm_type": kind, "repeat_times": None}},
            part("repeat_times", times),
        )
        for kind, times in (("grpo", 2), ("dapo", 16), ("ppo", 1))
    ),
    follows(
        "an explicit 1 is accepted",
        {"algorithm": {"algorithm_type": "opmd", "repeat_times": 1}},
        part("repeat_times", 1),
        told=ADVICE,
        said="repeat_times: 1",
    ),
    follows(
        "arguments lie over the defaults",
        at("algorithm.policy_loss_fn_args", {"clip_range": 0.3}),
        lambda plan: (
            len(plan.algorithm.policy_loss_fn_args) > 1
            and plan.algorithm.policy_loss_fn_args["clip_range"] == 0.3
        ),
    ),
    follows(
        "gspo keeps the way it is averaged",
        at("algorithm.algorithm_type", "gspo"),
        part("loss_agg_mode", "seq-mean-token-mean"),
    ),
    follows(
        "an averaging that is given stays",
        {"algorithm": {"algorithm_type": "gspo", "loss_agg_mode": "token-mean"}},
        part("loss_agg_mode", "token-mean"),
    ),
    told(
        "warmup_style",
        at("algorithm.optimizer.warmup_style", "cosine"),
        RENAMED,
        "lr_scheduler_type",
        holds=lambda plan: plan.lr_schedule.kind == "cosine",
    ),
    *(
        refused(
            f"{name} without rows",
            {"buffer": {"trainer_input": {"experience_buffer": {"path": None}}}},
            "path` is missing",
            base,
        )
        for name, base in (("sft", SFT), ("cpt", CPT), ("dpo", DPO))
    ),
    *(
        refused(
            f"{name} with an explorer",
            {"algorithm": {"algorithm_type": name}},
            "runs in `mode: train`, not in `mode: both`",
        )
        for name in ("sft", "cpt", "dpo")
    ),
    *(
        follows(
            f"{name} saves at its end alone",
            at("trainer.save_interval", 0),
            lambda plan: plan.config.synchronizer.sync_interval == 1,
            base=base,
        )
        for name, base in (("sft", SFT), ("cpt", CPT), ("dpo", DPO))
    ),
    follows("dpo has a reference", {}, lambda plan: plan.needs_reference, base=DPO),
    *(
        follows(f"{name} runs with its own defaults", {"algorithm": {"algorithm_type": name}}, ok)
        for name, ok in (("raft", part("algorithm_type", "raft")), ("rec", part("repeat_times", 8)))
    ),
    follows(
        "grpo_verl runs with its own defaults",
        at("algorithm.advantage_fn", "grpo_verl"),
        part("advantage_in_trainer", True),
    ),
    refused(
        "adaptive divergence without its target",
        {"algorithm": {"kl_loss_fn": "k2", "kl_loss_fn_args": {"adaptive": True}}},
        "adaptive KL needs target_kl",
    ),
    told(
        "router replay",
        at("algorithm.enable_router_replay", True),
        PLANNED,
        "enable_router_replay",
    ),
    follows(
        "a sample strategy's older name",
        at("algorithm.sample_strategy", "warmup"),
        part("sample_strategy", "warmup"),
    ),
]

MODEL = [
    follows(
        "a critic starts from the policy",
        {"algorithm": {"algorithm_type": "ppo"}},
        lambda plan: plan.critic_model_path == plan.model_path,
    ),
    refused(
        "a model of others that is trained",
        {"model": {"external_model": {"enable": True, "model_name": "theirs"}}},
        "tells no log-probabilities",
    ),
    refused(
        "a model of others by the engine's type",
        at(f"{ROLLOUT}.engine_type", "external"),
        "tells no log-probabilities",
    ),
    refused(
        "a model of others without a name",
        {"mode": "explore", "model": {"external_model": {"enable": True}}},
        "model.external_model.model_name",
    ),
    refused(
        "nothing to evaluate a model of others on",
        {"mode": "bench", "model": {"external_model": {"enable": True, "model_name": "theirs"}}},
        "eval_tasksets",
    ),
    follows(
        "exploring with a model of others",
        {
            "mode": "explore",
            "model": {"model_path": "", "external_model": {"enable": True, "model_name": "theirs"}},
        },
        lambda plan: (
            plan.external_model is not None
            and (plan.external_model.model_name, plan.external_model.api_key_env)
            == ("theirs", "OPENAI_API_KEY")
            and plan.roles == ("explorer",)
            and plan.num_rollout_gpus == 0
        ),
    ),
    told("the Tinker service", at("model.tinker.enable", True), PLANNED, "tinker"),
    refused(
        "an unreadable chat template",
        at("model.chat_template_path", "/none"),
        "`model.chat_template_path: /none` cannot be read",
    ),
    refused(
        "two chat templates",
        {"model": {"chat_template_path": "/none", "custom_chat_template": "x"}},
        "are both given",
    ),
    refused("no model", at("model.model_path", ""), "`model.model_path` is missing"),
    refused("more than the sequence", lengths(10, 6, 6), "exceed `model.max_model_len: 10`"),
    refused("no length", lengths(None, 6), "`model.max_model_len` is missing"),
    follows("the sum of both", lengths(None, 6, 4), have(10, 6, 4, 0)),
    follows("halves", lengths(11), have(11, 5, 6, 0)),
    follows("what the response leaves", lengths(10, None, 4), have(10, 6, 4, 0)),
    follows("what the prompt leaves", lengths(10, 4), have(10, 4, 6, 0)),
    follows("a response as long as all", lengths(10, None, 40), have(10, 1, 9, 0)),
    follows("a prompt as long as all", lengths(10, 40), have(10, 9, 1, 0)),
    follows("the shortest below the longest", lengths(10, 4, 6, 6), have(10, 4, 6, 5)),
    follows(
        "the rollout model inherits",
        {"model": {"top_k": 7, "top_p": 0.5}},
        lambda plan: (plan.tasksets[0].sampling.top_k, plan.tasksets[0].sampling.top_p) == (7, 0.5),
        told=ADVICE,
        said="truncated distribution",
    ),
    told(
        "sampling of the rollout model",
        at(f"{ROLLOUT}.temperature", 0.5),
        RENAMED,
        "model.temperature",
        holds=lambda plan: plan.tasksets[0].sampling.temperature == 0.5,
    ),
    follows(
        "penalised repetition",
        at("model.repetition_penalty", 1.1),
        lambda plan: plan.tasksets[0].sampling.repetition_penalty == 1.1,
        told=ADVICE,
        said="penalised repetition (`repetition_penalty: 1.1`)",
    ),
    follows(
        "the likeliest tokens",
        at("model.logprobs", 3),
        lambda plan: plan.tasksets[0].sampling.logprobs == 3,
    ),
    refused("more of them than the engine gives", at("model.logprobs", 21), "20"),
    refused("a penalty of 0", at("model.repetition_penalty", 0), "greater than 0"),
    follows(
        "one adapter",
        at("model.lora_configs", [{"lora_rank": 8, "target_modules": "q_proj, v_proj"}]),
        lambda plan: plan.lora.lora_rank == 8 and plan.lora.targets == ("q_proj", "v_proj"),
    ),
    refused("an adapter of rank 0", at("model.lora_configs", [{"lora_rank": 0}]), "greater than 0"),
    refused(
        "two adapters",
        at("model.lora_configs", [{"lora_rank": 8}, {"lora_rank": 16}]),
        "has 2 adapters, and one is trained at a time",
    ),
    refused(
        "a broken pattern of layers",
        at("model.lora_configs", [{"target_modules": "(q_proj"}]),
        "`target_modules: (q_proj` is no regular expression",
    ),
    refused(
        "no layers", at("model.lora_configs", [{"target_modules": ""}]), "`target_modules` is empty"
    ),
    refused(
        "an adapter that is not there",
        at("model.lora_configs", [{"path": "nowhere"}]),
        "has no adapter_config.json",
    ),
]

GPUS = [
    follows(
        "the trainer gets what rollout leaves",
        {"cluster": {"gpu_per_node": 4}},
        lambda plan: plan.trainer_rank_num == 3,
    ),
    refused("rollout takes them all", at("cluster.gpu_per_node", 1), "rollout takes 1 of 1 GPUs"),
    refused(
        "a train batch smaller than its ranks",
        {"buffer": {"train_batch_size": 2}, "cluster": {"gpu_per_node": 4}},
        "cannot feed 3 ranks",
    ),
    refused(
        "an engine over parts of machines",
        {
            "cluster": {"gpu_per_node": 2, "node_num": 3},
            "trainer": {"rank_num": 2},
            "explorer": {"rollout_model": {"tensor_parallel_size": 3}},
        },
        "no multiple of a node's 2",
    ),
    refused(
        "a gang over parts of machines",
        {"cluster": {"gpu_per_node": 2, "node_num": 2}},
        "3 GPUs are left to train on",
    ),
    follows(
        "an engine over whole machines",
        {
            "cluster": {"gpu_per_node": 2, "node_num": 3},
            "explorer": {"rollout_model": {"tensor_parallel_size": 4}},
        },
        lambda plan: plan.trainer_rank_num == 2,
    ),
    refused("no parallelism", at(f"{ROLLOUT}.tensor_parallel_size", 0), "tensor_parallel_size"),
    *(
        told(f"{name}", at(f"{ROLLOUT}.{name}", value), PLANNED, name)
        for name, value in (
            ("data_parallel_size", 2),
            ("pipeline_parallel_size", 2),
            ("enable_expert_parallel", True),
        )
    ),
    told("an engine's GPUs", at(f"{ROLLOUT}.gpu_per_engine", 2), NO_EFFECT, "gpu_per_engine"),
    told("counted GPUs", at("cluster.trainer_gpu_num", 2), NO_EFFECT, "trainer_gpu_num"),
    told("Ray's address", at("cluster.ray_address", "x"), NO_EFFECT, "no Ray"),
]

SYNCHRONIZER = [
    follows(
        "weights from memory to memory",
        at("synchronizer.sync_method", "online"),
        lambda plan: plan.sends_weights,
    ),
    follows(
        "weights through files",
        at("synchronizer.sync_method", "OFFLINE"),
        lambda plan: plan.config.synchronizer.sync_method == "checkpoint",
    ),
    *(
        follows(
            f"style {name}",
            at("synchronizer.sync_style", name),
            lambda plan, meant=meant: plan.config.synchronizer.sync_style == meant,
        )
        for name, meant in (
            ("dynamic_by_explorer", "explorer_driven"),
            ("dynamic_by_trainer", "trainer_driven"),
        )
    ),
    told("style fully_async", at("synchronizer.sync_style", "fully_async"), PLANNED, "fully_async"),
    refused("no interval", at("synchronizer.sync_interval", 0), "greater than 0"),
    told(
        "an explorer's own interval",
        at("synchronizer.explorer_sync_interval", 2),
        PLANNED,
        "share `sync_interval`",
    ),
    told("wait_for_checkpoint", at("synchronizer.wait_for_checkpoint", True), NO_EFFECT, "wait"),
    follows(
        "evaluations meet a synchronization",
        {"synchronizer": {"sync_interval": 3}, **evaluated()},
        lambda plan: plan.eval_interval == 99,
        told=ADVICE,
        said="is taken for 99",
    ),
    follows(
        "and no less than one",
        {"synchronizer": {"sync_interval": 3}, "explorer": {"eval_interval": 2}},
        lambda plan: plan.eval_interval == 3,
    ),
]

EXPLORER = [
    told("runner_num", at("explorer.runner_num", 4), NO_EFFECT, "runner_per_model"),
    refused("all may be left behind", at("explorer.over_rollout.ratio", 1.0), "less than 1"),
    follows(
        "some are left behind",
        {"buffer": {"batch_size": 10}, "explorer": {"over_rollout": {"ratio": 0.7}}},
        lambda plan: (
            (plan.num_spare_tasks, plan.rows_per_explore_step)
            == (7, 3 * plan.algorithm.repeat_times)
        ),
    ),
    follows(
        "too few to leave one behind",
        {"buffer": {"batch_size": 4}, "explorer": {"over_rollout": {"ratio": 0.2}}},
        lambda plan: plan.num_spare_tasks == 0,
        told=ADVICE,
        said="nothing is left behind below 0.25",
    ),
    follows(
        "an address whose calls are lost",
        at(f"{ROLLOUT}.enable_openai_api", True),
        lambda plan: plan.config.explorer.rollout_model.enable_openai_api,
        told=ADVICE,
        said="`enable_history: true`",
    ),
    told("calls of tools", at(f"{ROLLOUT}.tool_call_parser", "hermes"), SILENT, ""),
    refused(
        "calls of tools that nothing finds",
        at(f"{ROLLOUT}.enable_auto_tool_choice", True),
        "tool_call_parser` is missing",
    ),
    refused("a port there is not", at(f"{ROLLOUT}.base_port", 70000), "65536"),
    refused("an empty key", at(f"{ROLLOUT}.api_key", ""), "api_key"),
    refused("an unknown concurrency", at("explorer.concurrent_mode", "x"), "concurrent_mode"),
    told(
        "runs share a runner",
        at("explorer.concurrent_mode", "asynchronous"),
        NO_EFFECT,
        "asynchronous",
    ),
    follows(
        "a model beside the policy",
        at("explorer.auxiliary_models", [{"model_path": "/m", "temperature": 0.0}]),
        lambda plan: (
            [(one.name, one.model_path, one.max_model_len) for one in plan.auxiliary_models]
            == [("auxiliary_models[0]", "/m", plan.max_model_len)]
            and plan.auxiliary_models[0].sampling.temperature == 0.0
        ),
    ),
    follows(
        "a model beside the policy with lengths of its own",
        at("explorer.auxiliary_models", [{"model_path": "/m", "max_response_tokens": 7}]),
        lambda plan: (
            plan.auxiliary_models[0].max_model_len == plan.max_prompt_tokens + 7
            and plan.auxiliary_models[0].sampling.max_tokens == 7
        ),
    ),
    follows(
        "a judge that others serve",
        at(
            "explorer.auxiliary_models",
            [{"engine_type": "external", "external_model_config": {"model_name": "theirs"}}],
        ),
        lambda plan: (
            plan.auxiliary_models[0].external is not None
            and plan.auxiliary_models[0].external.model_name == "theirs"
            and plan.num_rollout_gpus == 1
        ),
    ),
    refused(
        "a judge that others serve, without its name there",
        at("explorer.auxiliary_models", [{"engine_type": "external"}]),
        "explorer.auxiliary_models[0].external_model_config.model_name",
    ),
    refused(
        "a model beside the policy that is nowhere",
        at("explorer.auxiliary_models", [{"name": "judge"}]),
        "explorer.auxiliary_models[0].model_path",
    ),
    refused(
        "two models of one name",
        at("explorer.auxiliary_models", [{"model_path": "/m", "name": "judge"}] * 2),
        "`judge`",
    ),
    refused(
        "a model beside the policy whose lengths contradict one another",
        at("explorer.auxiliary_models", [{"model_path": "/m", "max_model_len": 1}]),
        "explorer.auxiliary_models[0].max_model_len",
    ),
    *(
        told(f"the proxy's {name}", at(f"explorer.{name}", value), SILENT, "")
        for name, value in (("proxy_port", 1), ("listen_address", "x"))
    ),
    told("the proxy's database", at("explorer.db_url", "x"), PLANNED, "explorer.db_url"),
    follows(
        "serving takes an explorer alone",
        {"mode": "serve"},
        lambda plan: (plan.roles, plan.tasksets) == (("explorer",), ()),
    ),
    refused(
        "more engines running than there are",
        {"mode": "serve", "explorer": {"min_running_model_num": 2}},
        "`explorer.min_running_model_num: 2`",
    ),
    told("vllm_async", at(f"{ROLLOUT}.engine_type", "vllm_async"), SILENT, ""),
    told("sglang", at(f"{ROLLOUT}.engine_type", "sglang"), PLANNED, "SGLang"),
]

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
        ADVICE,
        "the buffer's database keeps every experience",
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
    told(
        "the Data-Juicer service",
        at("service.data_juicer", {"auto_start": True}),
        PLANNED,
        "auto_start",
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
    told("megatron", at("trainer.trainer_strategy", "megatron"), PLANNED, "Megatron"),
    told(
        "sequence parallelism", at("trainer.ulysses_sequence_parallel_size", 2), PLANNED, "one GPU"
    ),
    told("a file of verl's", at("trainer.trainer_config_path", "x"), PLANNED, "`trainer_config`"),
    told(
        "a key of verl's that is not passed on",
        at("trainer.trainer_config.algorithm.gamma", 0.9),
        PLANNED,
        "is not given this key",
    ),
    *(
        told(name, at(f"model.{name}", value), NO_EFFECT, name)
        for name, value in (("fully_sharded_loras", True), ("max_cpu_loras", 2))
    ),
    told("sft_warmup_steps", at("trainer.sft_warmup_steps", 5), PLANNED, "`algorithm_type: sft`"),
]

OLDER = [
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
            ("explorer.collect_experiences", True, NO_EFFECT, "always kept"),
            ("explorer.rollout_model.enable_prompt_truncation", False, RENAMED, "model.enable"),
            ("explorer.rollout_model.use_v1", False, NO_EFFECT, "one engine"),
            ("trainer.ppo_max_token_len_per_gpu", 64, RENAMED, "trainer.max_token_len_per_gpu"),
            ("trainer.actor_grad_clip", 0.5, RENAMED, "trainer.grad_clip"),
        )
    ),
]

CASES = [*OLDER, *THE_RUN, *ALGORITHM, *MODEL, *GPUS, *SYNCHRONIZER, *EXPLORER, *BUFFER, *TRAINER]


def checked(directory: Path, case: Case) -> Report:
    file = directory / "x.yaml"
    file.write_text(yaml.safe_dump(deep_merge(case.base, case.changes)))
    return check_file(file)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name.replace(" ", "-"))
def test_the_rule_holds(tmp_path: Path, case: Case) -> None:
    report = checked(tmp_path, case)
    said = {
        MISTAKE: list(report.mistakes),
        ADVICE: list(report.advice),
        **{
            status: [f"{one} {one.text}" for one in report.notices if one.status is status]
            for status in (PLANNED, NO_EFFECT, RENAMED)
        },
    }
    if case.told != SILENT:
        assert any(case.said in line for line in said.pop(case.told)), report
    assert [line for lines in said.values() for line in lines] == []
    if case.told == MISTAKE:
        return
    if not any(one.key == "mode" for one in report.notices):
        assert report.plan
        assert case.holds(report.plan.stages[0])


def test_a_file_says_the_same_however_often_it_is_read(tmp_path: Path) -> None:
    case = Case(name="", changes=tasksets({"path": "/a"}))
    once, again = checked(tmp_path, case), checked(tmp_path, case)
    assert once.plan == again.plan
    assert once.reading
    assert again.reading
    assert once.reading.written == again.reading.written


def test_nothing_is_made_where_a_run_would_be(tmp_path: Path) -> None:
    case = Case(name="", changes={"checkpoint_root_dir": str(tmp_path / "runs")})
    report = checked(tmp_path, case)
    assert report.plan
    assert report.plan.job_dir == str(tmp_path / "runs/demo/sums")
    assert not (tmp_path / "runs").exists()


def test_a_stage_has_the_rest_of_a_section_from_the_top(tmp_path: Path) -> None:
    stages = [{"stage_name": "one", "trainer": {"save_interval": 7}}]
    report = checked(
        tmp_path, Case(name="", changes={"trainer": {"grad_clip": 0.5}, "stages": stages})
    )
    assert report.plan
    (plan,) = report.plan.stages
    assert (plan.config.trainer.save_interval, plan.config.trainer.grad_clip) == (7, 0.5)
    assert plan.config.buffer.batch_size == 4
