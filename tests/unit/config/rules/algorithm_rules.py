"""The algorithm."""

from tests.unit.config.builders import CPT, DPO, SFT
from tests.unit.config.rules.case import ADVICE, RENAMED, at, follows, part, refused, told

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
            f"a group of {kind} is one rollout unless more are asked for",
            {"algorithm": {"algorithm_type": kind, "repeat_times": None}},
            part("repeat_times", 1),
            **({} if kind == "ppo" else {"told": ADVICE, "said": "2 or more gives it"}),
        )
        for kind in ("grpo", "dapo", "ppo")
    ),
    follows(
        "an explicit 1 is accepted",
        {"algorithm": {"algorithm_type": "opmd", "repeat_times": 1}},
        part("repeat_times", 1),
        told=ADVICE,
        said="repeat_times: 1",
    ),
    told(
        "an algorithm that wants fresh rollouts",
        {
            "algorithm": {"algorithm_type": "opmd"},
            "synchronizer": {"sync_offset": 1, "weight_update": "keep"},
        },
        ADVICE,
        "measured to learn at 0 at most",
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
    follows(
        "a sample strategy's older name",
        at("algorithm.sample_strategy", "warmup"),
        part("sample_strategy", "warmup"),
    ),
]
