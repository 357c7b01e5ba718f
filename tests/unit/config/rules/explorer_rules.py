"""The explorer, and its weights."""

from collections.abc import Callable

from tests.unit.config.rules.case import (
    ADVICE,
    NO_EFFECT,
    PLANNED,
    RENAMED,
    ROLLOUT,
    SILENT,
    Tree,
    at,
    evaluated,
    follows,
    refused,
    told,
)
from trinity.config.plan.rollouts_ahead import explore_steps_ahead
from trinity.config.plan.stage_plan import StagePlan


def syncs(style: str) -> Callable[[StagePlan], bool]:
    return lambda plan: plan.config.synchronizer.sync_style == style


def judging(model: Tree) -> Tree:
    """A model that the workflow asks."""
    workflow = at("buffer.explorer_input.default_workflow_type", "rubric_judge_workflow")
    return {**workflow, **at("explorer.auxiliary_models", [model])}


SYNCHRONIZER = [
    follows(
        "weights from memory to memory",
        at("synchronizer.sync_method", "online"),
        lambda plan: plan.transfers_weights_in_memory,
    ),
    follows(
        "those of an adapter, merged, as well",
        {"synchronizer": {"sync_method": "nccl"}, "model": {"lora_configs": [{"lora_rank": 8}]}},
        lambda plan: plan.transfers_weights_in_memory,
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
            syncs(meant),
        )
        for name, meant in (
            ("dynamic_by_explorer", "explorer_driven"),
            ("dynamic_by_trainer", "trainer_driven"),
        )
    ),
    follows(
        "style fully_async",
        {"synchronizer": {"sync_style": "fully_async"}, "explorer": {"max_inflight_batches": 3}},
        lambda plan: (plan.keeps_requests, explore_steps_ahead(plan)) == (True, 3),
    ),
    refused(
        "no common steps",
        {"synchronizer": {"sync_style": "fully_async"}, "buffer": {"train_step": "explore_step"}},
        "has no common steps",
    ),
    refused(
        "requests kept on policy",
        at("synchronizer.weight_update", "keep"),
        "`sync_offset: 0` names one version for each",
    ),
    follows(
        "requests kept with an offset",
        {"synchronizer": {"weight_update": "keep", "sync_offset": 1}},
        lambda plan: plan.keeps_requests,
    ),
    refused(
        "requests kept with the record of experts",
        {
            "synchronizer": {"weight_update": "keep", "sync_offset": 1},
            "algorithm": {"enable_router_replay": True},
        },
        "drops the record of experts",
    ),
    refused("no interval", at("synchronizer.sync_interval", 0), "greater than 0"),
    told(
        "an explorer's own interval",
        at("synchronizer.explorer_sync_interval", 2),
        PLANNED,
        "share `sync_interval`",
    ),
    told(
        "the trainer's interval",
        {"synchronizer": {"sync_style": "fully_async", "trainer_sync_interval": 3}},
        RENAMED,
        "sync_interval",
        holds=lambda plan: plan.config.synchronizer.sync_interval == 3,
    ),
    *(
        told(
            f"an evaluation with {key}",
            {"mode": "bench", "synchronizer": {key: value}, **evaluated()},
            ADVICE,
            "has no effect: `mode: bench`",
        )
        for key, value in (("weight_update", "keep"), ("sync_style", "fully_async"))
    ),
    told("wait_for_checkpoint", at("synchronizer.wait_for_checkpoint", True), NO_EFFECT, "wait"),
    follows(
        "evaluations meet a synchronization",
        {"synchronizer": {"sync_interval": 3}, **evaluated()},
        lambda plan: plan.eval_interval == 99,
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
            (plan.num_droppable_tasks, plan.rows_per_explore_step)
            == (7, 3 * plan.algorithm.repeat_times)
        ),
    ),
    follows(
        "too few to leave one behind",
        {"buffer": {"batch_size": 4}, "explorer": {"over_rollout": {"ratio": 0.2}}},
        lambda plan: plan.num_droppable_tasks == 0,
        told=ADVICE,
        said="has no effect: it is less than one of the tasks",
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
        judging({"model_path": "/m", "temperature": 0.0}),
        lambda plan: (
            [(one.name, one.model_path, one.max_model_len) for one in plan.auxiliary_models]
            == [("auxiliary_models[0]", "/m", plan.max_model_len)]
            and plan.auxiliary_models[0].sampling.temperature == 0.0
        ),
    ),
    follows(
        "a model beside the policy with lengths of its own",
        judging({"model_path": "/m", "max_response_tokens": 7}),
        lambda plan: (
            plan.auxiliary_models[0].max_model_len == plan.max_prompt_tokens + 7
            and plan.auxiliary_models[0].sampling.max_tokens == 7
        ),
    ),
    follows(
        "a judge that others serve",
        judging({"engine_type": "external", "external_model_config": {"model_name": "theirs"}}),
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
    told("the proxy's database", at("explorer.db_url", "x"), NO_EFFECT, "keeps nothing"),
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
