"""Models, lengths and GPUs."""

from tests.unit.config.rules.case import (
    ADVICE,
    NO_EFFECT,
    PLANNED,
    RENAMED,
    ROLLOUT,
    at,
    follows,
    have,
    lengths,
    refused,
    told,
)

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
    follows("the sum of both", lengths(None, 6, 4), have(10, 6, 4, 1)),
    follows("halves", lengths(11), have(11, 5, 6, 1)),
    follows("what the response leaves", lengths(10, None, 4), have(10, 6, 4, 1)),
    follows("what the prompt leaves", lengths(10, 4), have(10, 4, 6, 1)),
    follows("a response as long as all", lengths(10, None, 40), have(10, 1, 9, 1)),
    follows("a prompt as long as all", lengths(10, 40), have(10, 9, 1, 0)),
    follows(
        "the shortest below the longest",
        lengths(10, 4, 6, 6),
        have(10, 4, 6, 5),
    ),
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
        lambda plan: (
            plan.lora is not None
            and (plan.lora.lora_rank, plan.lora.targets) == (8, ("q_proj", "v_proj"))
        ),
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
        "`target_modules: (q_proj` is not a regular expression",
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
    refused("one GPU for both", at("cluster.gpu_per_node", 1), "give `mode: colocate`, with which"),
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
        "ranks on several machines",
        {"cluster": {"gpu_per_node": 2, "node_num": 2}},
        "3 ranks are more than one machine has GPUs",
    ),
    told(
        "an engine over whole machines",
        {
            "cluster": {"gpu_per_node": 2, "node_num": 3},
            "explorer": {"rollout_model": {"tensor_parallel_size": 4}},
        },
        ADVICE,
        "spreads it over several",
        holds=lambda plan: plan.trainer_rank_num == 2,
    ),
    refused("no parallelism", at(f"{ROLLOUT}.tensor_parallel_size", 0), "tensor_parallel_size"),
    *(
        follows(
            f"an engine of {name}",
            {"cluster": {"gpu_per_node": 8}, **at(f"{ROLLOUT}.{name}", 2)},
            lambda plan: (plan.num_rollout_gpus, plan.trainer_rank_num) == (2, 6),
        )
        for name in ("tensor_parallel_size", "data_parallel_size", "pipeline_parallel_size")
    ),
    follows(
        "all sizes of an engine",
        {
            "cluster": {"gpu_per_node": 8},
            "explorer": {"rollout_model": {"data_parallel_size": 2, "pipeline_parallel_size": 3}},
        },
        lambda plan: (plan.num_rollout_gpus, plan.trainer_rank_num) == (6, 2),
    ),
    refused(
        "copies of the weights that take more than there is",
        {
            "cluster": {"gpu_per_node": 4},
            "explorer": {"rollout_model": {"data_parallel_size": 2, "tensor_parallel_size": 2}},
        },
        "rollout takes 4 of 4 GPUs",
    ),
    told("an engine's GPUs", at(f"{ROLLOUT}.gpu_per_engine", 2), NO_EFFECT, "gpu_per_engine"),
    told("counted GPUs", at("cluster.trainer_gpu_num", 2), NO_EFFECT, "trainer_gpu_num"),
    told("Ray's address", at("cluster.ray_address", "x"), NO_EFFECT, "no Ray"),
]
