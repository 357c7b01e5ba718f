"""`trinity config plan` as somebody types it."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner

from tests.unit.config.builders import GRPO
from trinity.cli.main import make_app
from trinity.config.schema.experiment import deep_merge
from trinity.errors import UserError

QWEN = {
    "model_type": "qwen2",
    "hidden_size": 1536,
    "num_hidden_layers": 28,
    "num_attention_heads": 12,
    "num_key_value_heads": 2,
    "intermediate_size": 8960,
    "vocab_size": 151936,
    "tie_word_embeddings": True,
}


def experiment(tmp_path: Path, **changes: object) -> str:
    model = tmp_path / "model"
    model.mkdir(exist_ok=True)
    (model / "config.json").write_text(json.dumps(QWEN))
    given = deep_merge(GRPO, {"model": {"model_path": str(model), "max_model_len": 2048}})
    path = tmp_path / "x.yaml"
    path.write_text(yaml.safe_dump(deep_merge(given, changes)))
    return str(path)


def plan(*arguments: str) -> str:
    done = CliRunner().invoke(make_app(["config", "plan"]), ["config", "plan", *arguments])
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        raise done.exception
    return done.output


def activations(tmp_path: Path, **trainer: object) -> float:
    text = plan(
        experiment(tmp_path, cluster={"gpu_per_node": 5}, trainer=trainer), "--gpu-memory", "80"
    )
    number, unit = line(text, "activations").split()[1:3]
    return float(number) * {"MiB": 1 / 1024, "GiB": 1}[unit]


def test_ranks_that_share_rows_have_their_parts_of_the_activations(tmp_path: Path) -> None:
    whole = activations(tmp_path, max_token_len_per_gpu=4096)
    shared = {"ulysses_sequence_parallel_size": 4, "max_token_len_per_gpu": 1024}
    assert activations(tmp_path, **shared) == pytest.approx(whole / 4, rel=0.05)


def line(text: str, beginning: str) -> str:
    return next(one.strip() for one in text.splitlines() if one.strip().startswith(beginning))


def test_places_volume_and_memory_are_told(tmp_path: Path) -> None:
    text = plan(experiment(tmp_path, cluster={"gpu_per_node": 3}), "--gpu-memory", "80")
    assert line(text, "rollout engine 0").endswith("GPU 0:0")
    assert line(text, "rank 1").endswith("GPU 0:2")
    assert "10 explore steps of 4 tasks x 8 rollouts: 40 tasks, 320 experiences" in text
    assert "1,543,714,304 parameters" in text
    # 4 bytes x 1,543,714,304 / 2 ranks
    assert line(text, "gradients").split()[1:3] == ["2.9", "GiB"]
    assert "estimate until measured" in text
    assert "DOES NOT FIT" not in text
    assert line(text, "FITS: the cache").endswith("up to 512 run at a time"), "8 runners of 64 runs"


def test_what_does_not_fit_names_the_setting_to_change(tmp_path: Path) -> None:
    file = experiment(
        tmp_path, cluster={"gpu_per_node": 2}, trainer={"max_token_len_per_gpu": 32768}
    )
    text = plan(file, "--gpu-memory", "80")
    assert "set `trainer.max_token_len_per_gpu: " in line(text, "DOES NOT FIT")
    tokens = int(text.partition("trainer.max_token_len_per_gpu: ")[2].partition("`")[0])
    mended = experiment(
        tmp_path, cluster={"gpu_per_node": 2}, trainer={"max_token_len_per_gpu": tokens}
    )
    assert "DOES NOT FIT" not in plan(mended, "--gpu-memory", "80")


def test_more_gpus_are_advised_where_fewer_tokens_do_not_help(tmp_path: Path) -> None:
    text = plan(experiment(tmp_path, cluster={"gpu_per_node": 2}), "--gpu-memory", "24")
    assert "GPUs of one machine (`cluster.gpu_per_node`)" in line(text, "DOES NOT FIT")


def test_an_engine_without_room_is_told(tmp_path: Path) -> None:
    rollout = {"rollout_model": {"gpu_memory_utilization": 0.1}}
    file = experiment(tmp_path, cluster={"gpu_per_node": 2}, explorer=rollout)
    text = plan(file, "--gpu-memory", "40")
    assert "gpu_memory_utilization: 0.85" in line(text, "DOES NOT FIT: no sequence")


def test_without_a_gpu_all_is_on_the_processor(tmp_path: Path) -> None:
    text = plan(experiment(tmp_path))
    assert line(text, "rank 0").endswith("the processor")
    assert "FIT" not in text


def test_a_model_that_is_not_here_may_be_described(tmp_path: Path) -> None:
    file = experiment(tmp_path, model={"model_path": "Some/Model-7B"})
    assert "there is no config.json of Some/Model-7B here" in plan(file)
    config = str(tmp_path / "model" / "config.json")
    assert "1,543,714,304 parameters" in plan(file, "--model-config", config)


def test_data_that_is_not_here_may_be_counted_by_hand(tmp_path: Path) -> None:
    file = experiment(tmp_path, buffer={"total_steps": None, "total_epochs": 2})
    assert "give its size with --rows" in plan(file)
    assert "5 explore steps" in plan(file, "--rows", "10")


def test_gpus_that_do_not_suffice_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="GPUs"):
        plan(experiment(tmp_path, cluster={"gpu_per_node": 1}))


def test_no_heavy_library_is_loaded(tmp_path: Path) -> None:
    code = (
        "import sys; from trinity.cli.config_plan import plan; "
        f"plan([{experiment(tmp_path)!r}]); "
        "print([m for m in ('torch', 'transformers', 'pyarrow') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"


def test_models_beside_the_policy_take_gpus_and_memory_too(tmp_path: Path) -> None:
    model = str(tmp_path / "model")
    judge = {"name": "judge", "model_path": model, "engine_num": 2, "gpu_memory_utilization": 0.01}
    theirs = {"engine_type": "external", "external_model_config": {"model_name": "theirs"}}
    file = experiment(
        tmp_path,
        cluster={"gpu_per_node": 4},
        explorer={"auxiliary_models": [judge, theirs]},
    )
    text = plan(file, "--gpu-memory", "80")
    assert line(text, "rollout engine 0").endswith("GPU 0:0")
    assert line(text, "judge engine 1").endswith("GPU 0:2")
    assert "auxiliary_models[1] engine" not in text
    assert line(text, "rank 0").endswith("GPU 0:3")
    of_judge = text.partition("auxiliary model judge, on each GPU")[2]
    assert line(of_judge, "weights").split()[1:3] == ["2.9", "GiB"]
    assert line(of_judge, "DOES NOT FIT").startswith("DOES NOT FIT: no sequence of 2048 tokens")
    assert "it is served elsewhere" in of_judge


def test_models_beside_the_policy_leave_fewer_gpus_to_train_on(tmp_path: Path) -> None:
    judge = {"model_path": str(tmp_path / "model"), "tensor_parallel_size": 2}
    file = experiment(tmp_path, cluster={"gpu_per_node": 3}, explorer={"auxiliary_models": [judge]})
    with pytest.raises(UserError, match="rollout takes 3 of 3 GPUs"):
        plan(file)


def test_turns_on_one_gpu_show_what_waits_in_the_hosts_memory(tmp_path: Path) -> None:
    by_turns = {"mode": "colocate", "cluster": {"gpu_per_node": 1}}
    text = plan(experiment(tmp_path, **by_turns), "--gpu-memory", "80")
    assert "(mode colocate, grpo)" in text
    assert line(text, "rollout engine 0").endswith("GPU 0:0")
    assert line(text, "rank 0").endswith("GPU 0:0")
    # (12 of the policy + 2 of the reference) bytes x 1,543,714,304, and the engine's 2
    waiting = text.partition("by turns")[2]
    assert line(waiting, "trainer  ").split()[1:3] == ["20.1", "GiB"]
    assert line(waiting, "engine  ").split()[1:3] == ["2.9", "GiB"]
    assert "DOES NOT FIT" not in text
    level = {"explorer": {"rollout_model": {"sleep_level": 2}}}
    reloaded = plan(experiment(tmp_path, **deep_merge(by_turns, level)), "--gpu-memory", "80")
    assert "none: loaded at each turn" in reloaded


def test_turns_are_of_one_engine_and_one_rank(tmp_path: Path) -> None:
    file = experiment(tmp_path, mode="colocate", cluster={"gpu_per_node": 2})
    with pytest.raises(UserError, match="is one GPU for one engine and one rank"):
        plan(file)


def test_a_head_that_is_computed_whole_is_counted_whole(tmp_path: Path) -> None:
    def logits(**keys: object) -> str:
        file = experiment(
            tmp_path, cluster={"gpu_per_node": 2}, trainer={"use_fused_kernels": True}
        )
        (tmp_path / "model" / "config.json").write_text(json.dumps(QWEN | keys))
        return line(plan(file), "logits").split()[1]

    # 18 bytes of 512 tokens, and of 4096
    assert (logits(), logits(final_logit_softcapping=30.0)) == ("1.3", "10.4")


def test_scores_that_lie_in_memory_are_counted(tmp_path: Path) -> None:
    def activations(trainer: dict[str, object] | None = None, **keys: object) -> float:
        file = experiment(tmp_path, cluster={"gpu_per_node": 2}, trainer=trainer or {})
        (tmp_path / "model" / "config.json").write_text(json.dumps(QWEN | keys))
        return float(line(plan(file), "activations").split()[1])

    # 14 bytes of 4096 tokens, 2048 before each and as many heads as there are; one layer at a time
    scores = 14 * 4096 * 2048 * int(str(QWEN["num_attention_heads"])) / 1024**3
    capped = activations(attn_logit_softcapping=50.0)
    assert capped - activations() == pytest.approx(scores, abs=0.11)
    assert activations({"override_config": {"attn_implementation": "eager"}}) == capped


def test_micro_batches_of_rows_are_as_long_as_their_rows_may_be(tmp_path: Path) -> None:
    by_rows = {"use_dynamic_bsz": False, "ppo_micro_batch_size_per_gpu": 16}
    file = experiment(tmp_path, cluster={"gpu_per_node": 2}, trainer=by_rows)
    text = plan(file, "--gpu-memory", "80")
    assert line(text, "activations").endswith(f"T = {16 * 2048}")
    assert "set `trainer.ppo_micro_batch_size_per_gpu: " in line(text, "DOES NOT FIT")
    rows = int(text.partition("set `trainer.ppo_micro_batch_size_per_gpu: ")[2].partition("`")[0])
    mended = by_rows | {"ppo_micro_batch_size_per_gpu": rows}
    file = experiment(tmp_path, cluster={"gpu_per_node": 2}, trainer=mended)
    assert "DOES NOT FIT" not in plan(file, "--gpu-memory", "80")


def test_a_critic_is_counted_with_its_own_micro_batches(tmp_path: Path) -> None:
    critic = {"max_token_len_per_gpu": 2048, "enable_gradient_checkpointing": False}
    file = experiment(
        tmp_path,
        algorithm={"algorithm_type": "ppo", "repeat_times": 2},
        cluster={"gpu_per_node": 2},
        trainer={"critic": critic},
    )
    actor, own = [each for each in plan(file).splitlines() if "  activations" in each]
    assert actor.endswith("one layer, T = 4096")
    assert own.endswith("bytes T L, T = 2048")


REFERENCE: dict[str, object] = {"algorithm_type": "grpo", "kl_loss_fn": "k2"}
PROXIMAL: dict[str, object] = {"kl_loss_fn": "none", "bypass_old_logprobs": False}


@pytest.mark.parametrize(
    ("algorithm", "roles"), [(REFERENCE, ["reference"]), (PROXIMAL, ["actor"]), ({}, ["reference"])]
)
def test_passes_without_gradients_are_counted_where_there_are_any(
    tmp_path: Path, algorithm: dict[str, object], roles: list[str]
) -> None:
    def counted(**trainer: object) -> list[str]:
        file = experiment(
            tmp_path, algorithm=algorithm, cluster={"gpu_per_node": 2}, trainer=trainer
        )
        text = plan(file, "--gpu-memory", "80")
        passes = [part for part in text.split(" on each of ") if "log-prob pass" in part]
        return [text.partition(part)[0].split()[-4] for part in passes]

    assert counted(log_prob_max_token_len_per_gpu=65536) == roles
    assert counted(log_prob_max_token_len_per_gpu=4096) == counted() == []
    assert counted(use_dynamic_bsz=False, log_prob_micro_batch_size_per_gpu=16) == roles


def test_a_stage_without_passes_without_gradients_has_none(tmp_path: Path) -> None:
    none = {"kl_loss_fn": "none"}
    trainer = {"log_prob_max_token_len_per_gpu": 65536}
    file = experiment(tmp_path, algorithm=none, cluster={"gpu_per_node": 2}, trainer=trainer)
    assert "log-prob pass" not in plan(file)


def test_a_limit_without_gradients_that_does_not_fit_is_named(tmp_path: Path) -> None:
    def advice(**trainer: object) -> str:
        file = experiment(
            tmp_path, algorithm=PROXIMAL, cluster={"gpu_per_node": 2}, trainer=trainer
        )
        return line(plan(file, "--gpu-memory", "80"), "DOES NOT FIT")

    large = {"log_prob_max_token_len_per_gpu": 65536}
    assert advice(**large).endswith(": leave out `trainer.log_prob_max_token_len_per_gpu`")
    both = advice(**large, max_token_len_per_gpu=32768)
    tokens = both.partition("set `trainer.max_token_len_per_gpu: ")[2].partition("`")[0]
    assert both.endswith("` and leave out `trainer.log_prob_max_token_len_per_gpu`")
    file = experiment(
        tmp_path,
        algorithm=PROXIMAL,
        cluster={"gpu_per_node": 2},
        trainer={"max_token_len_per_gpu": int(tokens)},
    )
    assert "DOES NOT FIT" not in plan(file, "--gpu-memory", "80")


def test_a_chunked_head_keeps_passes_without_gradients_small(tmp_path: Path) -> None:
    trainer = {
        "log_prob_max_token_len_per_gpu": 65536,
        "entropy_from_logits_with_chunking": True,
    }
    file = experiment(tmp_path, algorithm=PROXIMAL, cluster={"gpu_per_node": 2}, trainer=trainer)
    assert "DOES NOT FIT" not in plan(file, "--gpu-memory", "80")


def test_advice_for_more_memory_keeps_to_the_machines(tmp_path: Path) -> None:
    def advice(**changes: object) -> str:
        return line(plan(experiment(tmp_path, **changes), "--gpu-memory", "12"), "DOES NOT FIT")

    one_gpu = advice(mode="colocate", cluster={"gpu_per_node": 1}, buffer={"batch_size": 64})
    assert "which takes `mode: both` and a GPU more for the engine" in one_gpu
    cluster = {"node_num": 4, "gpu_per_node": 2}
    several = advice(cluster=cluster, trainer={"rank_num": 2}, buffer={"batch_size": 64})
    assert "whole machines (`cluster.node_num`)" in several
    groups = advice(
        cluster={"gpu_per_node": 17}, trainer={"fsdp_size": 2}, buffer={"batch_size": 64}
    )
    assert "ranks (`trainer.fsdp_size`)" in groups
