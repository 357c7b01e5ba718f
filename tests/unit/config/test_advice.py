"""What is allowed but seldom meant is said before a start."""

import json
from pathlib import Path

from tests.unit.config.builders import GRPO, SFT, config, write_rows
from trinity.config.checks.advice import LEAST_TEMPERATURE, advise
from trinity.config.planning import plan_experiment


def said(base: dict[str, object] = GRPO, /, **changes: object) -> tuple[str, ...]:
    return advise(plan_experiment(config(base, **changes)))


def test_usual_configurations_need_no_advice() -> None:
    assert said() == said(SFT) == ()


def test_a_head_that_is_computed_whole_is_told_with_the_reason(tmp_path: Path) -> None:
    def told(keys: dict[str, object], **trainer: object) -> tuple[str, ...]:
        (tmp_path / "config.json").write_text(json.dumps({"model_type": "gemma2", **keys}))
        return said(model={"model_path": str(tmp_path)}, trainer=trainer)

    capped: dict[str, object] = {"final_logit_softcapping": 30.0}
    assert told({}, use_fused_kernels=True) == told(capped) == ()
    (whole,) = told(capped, use_fused_kernels=True, entropy_checkpointing=True)
    assert "`trainer.use_fused_kernels: true`, `trainer.entropy_checkpointing: true`" in whole
    assert "(`final_logit_softcapping`): all logits of a micro-batch are in memory" in whole


def test_an_engine_larger_than_a_machine_is_told() -> None:
    cluster = {"node_num": 4, "gpu_per_node": 8}

    def told(**sizes: int) -> tuple[str, ...]:
        return said(cluster=cluster, explorer={"rollout_model": sizes}, trainer={"rank_num": 8})

    (large,) = told(tensor_parallel_size=8, pipeline_parallel_size=2)
    assert "an engine of 16 GPUs (rollout engine) is larger than a machine of 8" in large
    assert told(tensor_parallel_size=8) == ()


def test_limits_of_micro_batches_that_do_not_act_are_told() -> None:
    rows, tokens = {"ppo_micro_batch_size_per_gpu": 4}, {"max_token_len_per_gpu": 8192}
    (unread,) = said(trainer=rows)
    assert "`trainer.ppo_micro_batch_size_per_gpu: 4` has no effect" in unread
    (unread,) = said(trainer={"use_dynamic_bsz": False, **rows, **tokens})
    assert "`trainer.max_token_len_per_gpu: 8192` has no effect" in unread
    assert said(trainer={"use_dynamic_bsz": False, **rows}) == said(trainer=tokens) == ()


def test_code_that_there_is_not_is_not_said_to_run(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "qwen3"}))
    trusted: dict[str, object] = {"model_path": str(tmp_path), "trust_remote_code": True}
    assert said(model=trusted) == ()
    (tmp_path / "modeling_own.py").touch()
    (code,) = said(model=trusted)
    assert "runs modeling_own.py of the model" in code


def test_rows_that_the_run_will_give_up_are_told(tmp_path: Path) -> None:
    rows = [{"prompt": "a", "response": "1"}] * 3 + [{"prompt": None, "response": "1"}]
    file = write_rows(tmp_path / "a.jsonl", *rows)
    (bad,) = said(buffer={"explorer_input": {"taskset": {"path": file}}})
    assert "`train`: 1 of its first 4 rows cannot be asked or scored" in bad
    file = write_rows(tmp_path / "b.jsonl", *rows[:3])
    assert said(buffer={"explorer_input": {"taskset": {"path": file}}}) == ()


def test_files_that_are_not_read_beside_shards_are_told(tmp_path: Path) -> None:
    row = {"prompt": "a", "response": "1"}
    rows = tmp_path / "data"
    rows.mkdir()
    write_rows(rows / "train-00000-of-00001.jsonl", row)
    write_rows(tmp_path / "train.jsonl", row)
    write_rows(tmp_path / "test.jsonl", row)
    (unread,) = said(buffer={"explorer_input": {"taskset": {"path": str(tmp_path)}}})
    assert f"train.jsonl in {tmp_path} is not read, as the folder has shards" in unread
    assert said(buffer={"explorer_input": {"taskset": {"path": str(rows)}}}) == ()


def test_training_on_truncated_sampling_is_told() -> None:
    (top_p,) = said(model={"top_p": 0.9})
    assert top_p.startswith("stage `main`: training on samples of a truncated distribution")
    assert "`top_p: 0.9`" in top_p
    (top_k,) = said(buffer={"explorer_input": {"taskset": {"rollout_args": {"top_k": 20}}}})
    assert "`top_k: 20`" in top_k


def test_greedy_rollouts_are_told() -> None:
    (greedy,) = said(model={"temperature": 0.0})
    assert "`temperature: 0` for training" in greedy
    assert said(model={"temperature": 0.1}) == ()


def test_a_temperature_that_the_engine_does_not_draw_at_is_told() -> None:
    low = {"rollout_args": {"temperature": 0.001}}
    (told,) = said(buffer={"explorer_input": {"taskset": low}})
    assert "`temperature: 0.001` for training: vLLM draws at 0.01 at least" in told
    assert said(model={"temperature": LEAST_TEMPERATURE}) == ()


def test_sampling_of_evaluations_alone_is_nobodys_business() -> None:
    evaluation = {"path": "/e", "rollout_args": {"top_p": 0.5}}
    assert said(buffer={"explorer_input": {"eval_tasksets": [evaluation]}}) == ()


def test_a_number_of_repeats_that_training_does_not_take_is_told() -> None:
    (repeats,) = said(buffer={"explorer_input": {"taskset": {"repeat_times": 4}}})
    assert "`repeat_times: 4` of a taskset to train on has no effect" in repeats
    assert said(buffer={"explorer_input": {"taskset": {"repeat_times": 8}}}) == ()


def test_a_comparison_of_one_is_told() -> None:
    (alone,) = said(algorithm={"repeat_times": 1})
    assert "grpo compares the rollouts of a task" in alone
    assert said(algorithm={"algorithm_type": "ppo", "repeat_times": 1}) == ()
    assert said(algorithm={"repeat_times": 1, "advantage_fn": "reinforce"}) == ()
    for alone in ("vapo", "topr", "reinforceplusplus"):
        assert said(algorithm={"algorithm_type": alone, "repeat_times": 1}) == ()


def test_a_filter_that_keeps_all_rollouts_is_told() -> None:
    (kept,) = said(algorithm={"algorithm_type": "gfpo", "repeat_times": 8})
    assert "gfpo keeps 8 rollouts" in kept and "all of them" in kept
    assert said(algorithm={"algorithm_type": "gfpo", "repeat_times": 9}) == ()
    fewer = {"repeat_times": 4, "advantage_fn": "gfpo", "advantage_fn_args": {"num_kept": 4}}
    assert any("gfpo keeps 4" in text for text in said(algorithm=fewer))


def test_a_divisor_that_divides_nothing_is_told() -> None:
    (unread,) = said(algorithm={"loss_scale_factor": 100})
    assert "`algorithm.loss_scale_factor: 100` has no effect: only `loss_agg_mode" in unread
    assert said(algorithm={"algorithm_type": "dr_grpo", "loss_scale_factor": 100}) == ()


def test_a_bound_that_leaves_out_what_is_planned_is_told() -> None:
    def strict(most: int | None) -> dict[str, object]:
        arguments = {"max_staleness": most}
        return {"sample_strategy": "staleness_control", "sample_strategy_args": arguments}

    assert said(algorithm=strict(0)) == ()
    ahead = {"sync_offset": 2}
    assert said(algorithm=strict(2), synchronizer=ahead) == ()
    assert said(algorithm=strict(None), synchronizer=ahead) == ()
    (told,) = said(algorithm=strict(1), synchronizer=ahead)
    assert "up to 2 train steps old" in told and "`max_staleness: 1` leaves those out" in told
    (small,) = said(algorithm=strict(0), buffer={"train_batch_size": 8})
    assert "up to 3 train steps old" in small


def test_a_bound_on_the_age_of_expert_rows_beside_rollouts_is_told_alike() -> None:
    rows = {"sft_dataset": {"storage_type": "file", "path": "/data/sft.jsonl"}}
    given = {"algorithm_type": "mix", "sample_strategy_args": {"max_staleness": 1}}
    (told,) = said(
        algorithm=given,
        buffer={"trainer_input": {"auxiliary_buffers": rows}, "train_batch_size": 64},
        synchronizer={"sync_offset": 2},
    )
    assert "up to 2 train steps old" in told and "`max_staleness: 1` leaves those out" in told


def test_a_bound_on_stored_experiences_is_told() -> None:
    bound = {"sample_strategy": "staleness_control", "sample_strategy_args": {"max_staleness": 1}}
    names = ("explore", "look"), ("train", "learn")
    stages = [{"mode": mode, "stage_name": name} for mode, name in names]
    (told,) = said(stages=stages, algorithm=bound)
    assert "stage `learn`: `algorithm.sample_strategy_args` has no effect: `max_stal" in told
    assert said(stages=stages) == ()


def test_keys_that_do_nothing_on_data_are_told() -> None:
    inherited = {"algorithm_type": "sft", "advantage_fn": "grpo", "bypass_old_logprobs": False}
    assert said(SFT, algorithm=inherited) == (
        "stage `main`: `algorithm.advantage_fn: grpo` has no effect: `sft` trains on data",
        "stage `main`: `algorithm.bypass_old_logprobs: false` has no effect: `sft` trains on data",
    )


def test_retention_that_every_kept_checkpoint_stands_in_the_way_of_is_told() -> None:
    asked = {"keep_steps": 5}
    (kept,) = said(buffer=asked, trainer={"save_interval": 10})
    assert "`buffer.keep_steps: 5` has no effect: all checkpoints are kept" in kept
    few = {"save_interval": 10, "max_checkpoints_to_keep": 2}
    assert said(buffer=asked, trainer=few) == said(buffer=asked) == ()


def test_keys_of_training_data_on_tasks_are_told() -> None:
    form = {"chat_template": "x", "tools_key": "offered", "prompt_key": "question"}
    told = said(buffer={"explorer_input": {"taskset": {"format": form}}})
    assert [line.split("`")[3] for line in told] == ["format.tools_key", "format.chat_template"]
    assert said(SFT, buffer={"trainer_input": {"experience_buffer": {"format": form}}}) == ()


def test_a_guessed_workflow_is_told_with_what_it_means() -> None:
    (guess,) = said(buffer={"explorer_input": {"default_workflow_type": None}})
    assert "answers are graded as mathematics (`math_workflow`)" in guess


def test_a_model_that_the_engine_does_not_have_is_told() -> None:
    changed = {"override_config": {"rope_theta": 1.0}}
    (text,) = said(trainer=changed)
    assert "tell the engine too" in text
    assert text.endswith("`model.rope_scaling` and `model.rope_theta` reach both")
    assert said(SFT, trainer=changed) == ()
    kernel = {"override_config": {"attn_implementation": "flash_attention_2"}}
    assert said(trainer=kernel, cluster={"gpu_per_node": 2}) == (), "it computes the same"


def test_a_reward_that_the_workflow_does_not_call_is_told() -> None:
    def given(workflow: str) -> dict[str, object]:
        named = {"default_workflow_type": workflow, "default_reward_fn_type": "math_reward"}
        return {"explorer_input": {"taskset": named}}

    (told,) = said(buffer=given("frozen_lake_workflow"))
    assert "`default_reward_fn_type: math_reward` of taskset `train` is not called" in told
    assert said(buffer=given("math_workflow")) == ()


def test_a_model_of_a_critic_that_there_is_not_is_told() -> None:
    (unread,) = said(model={"critic_model_path": "/models/critic"})
    assert "`model.critic_model_path: /models/critic` has no effect: no critic" in unread
    with_critic = said(
        algorithm={"algorithm_type": "ppo"}, model={"critic_model_path": "/models/critic"}
    )
    assert not [text for text in with_critic if "critic_model_path" in text]


def test_a_format_of_experiences_is_told() -> None:
    rows = {"trainer_input": {"experience_buffer": {"format": {"prompt_key": "question"}}}}
    (unread,) = said(buffer=rows)
    assert "`buffer.trainer_input.experience_buffer.format` has no effect" in unread
    assert said(SFT, buffer=rows) == ()


def shaped(*before: dict[str, object]) -> tuple[str, ...]:
    rule = {"stats_key": "quality", "op_type": "ADD", "weight": 0.5}
    shaping = {"name": "reward_shaping_mapper", "args": {"reward_shaping_configs": [rule]}}
    return said(
        data_processor={"experience_pipeline": {"operators": [*before, shaping]}},
        service={"data_juicer": {"server_url": "http://127.0.0.1:8005"}},
    )


def test_a_number_that_shapes_rewards_and_that_no_operator_makes_is_told() -> None:
    (missing,) = shaped()
    assert "`reward_shaping_mapper` reads `quality`, which no operator before it makes" in missing
    (missing,) = shaped({"name": "reward_std_filter"})
    assert "`quality`" in missing
    scored: dict[str, object] = {"operators": [{"llm_quality_score_filter": {}}]}
    assert shaped({"name": "data_juicer", "args": scored}) == ()


def test_batches_that_follow_the_clock_are_told() -> None:
    def told(seconds: float, **changes: object) -> tuple[str, ...]:
        waits = {"trainer_input": {"experience_buffer": {"max_read_timeout": seconds}}}
        return said(buffer=waits, **changes)

    (clock,) = told(7200)
    assert "so batches depend on the clock" in clock and "a run may take" not in clock
    (late,) = told(60)
    assert "(`explorer.max_timeout`)" in late
    (unread,) = told(60, mode="explore")
    assert "has no effect: no trainer waits for rollouts in this mode" in unread
