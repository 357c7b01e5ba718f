"""Models and chat templates that cannot work are refused before any engine starts."""

import json
from pathlib import Path

import pytest

from tests.unit.config.builders import CHAT, SFT, write_model, write_rows
from tests.unit.config.preflight import MESSAGES, TASK, TURNS, check, grpo, sft


@pytest.fixture
def model(tmp_path: Path) -> str:
    return write_model(tmp_path / "model")


def test_a_critics_own_model_is_looked_at(tmp_path: Path, model: str) -> None:
    def said(critic: str) -> str:
        changes = grpo(model, {"path": write_rows(tmp_path / "train.jsonl", TASK)})
        changes["model"] = {"model_path": model, "critic_model_path": critic}
        return check(tmp_path, **changes, algorithm={"algorithm_type": "ppo"})

    described = {"hidden_size": 128, "num_attention_heads": 4, "vocab_size": 100}
    small = write_model(tmp_path / "small", **{**described, "vocab_size": 50})
    config_json = Path(model) / "config.json"
    config_json.write_text(json.dumps({"model_type": "qwen2", **described}))
    assert said(model) == ""
    assert "knows 50 tokens, the policy 100" in said(small)
    assert f"there is no model directory {tmp_path / 'none'}" in said(str(tmp_path / "none"))


@pytest.mark.parametrize(
    ("file", "text", "said"),
    [
        ("config.json", None, "has no readable config.json"),
        ("config.json", "{", "is damaged"),
        ("config.json", "{}", "model_type"),
        ("model.safetensors", None, "has no *.safetensors file"),
        ("model.safetensors", "", "is cut short or damaged"),
        ("model.safetensors", "x" * 64, "is cut short or damaged"),
        ("model.safetensors", "\x02" + "\0" * 7 + "no" + "w", "is not a safetensors file"),
        ("tokenizer.json", "{", "is damaged"),
        ("model.safetensors.index.json", "{}", "is damaged"),
        (
            "model.safetensors.index.json",
            '{"weight_map": {"w": "model-2.safetensors"}}',
            "lacks its shard model-2.safetensors",
        ),
        ("tokenizer.json", None, "has no tokenizer"),
        ("tokenizer_config.json", None, "has no chat template: give `model.chat_template_path`"),
    ],
)
def test_an_incomplete_model_is_named(
    tmp_path: Path, model: str, file: str, text: str | None, said: str
) -> None:
    path = write_rows(tmp_path / "sft.jsonl", MESSAGES)
    if text is None:
        (Path(model) / file).unlink()
    else:
        (Path(model) / file).write_text(text)
    answer = check(tmp_path, SFT, **sft(model, path=path))
    assert said in answer
    assert model in answer


def test_the_chat_template_is_tried_on_rows_of_data(tmp_path: Path, model: str) -> None:
    config_json = Path(model) / "tokenizer_config.json"
    path = write_rows(tmp_path / "sft.jsonl", MESSAGES, MESSAGES)
    assert check(tmp_path, SFT, **sft(model, path=path)) == ""
    silent = CHAT.replace("[{{ call.function.name }}]", "")
    config_json.write_text(json.dumps({"chat_template": silent}))
    said = ":1: the chat template leaves out `tool_calls` of message 1 (`add`)"
    assert said in check(tmp_path, SFT, **sft(model, path=path))
    named = [{"name": "default", "template": silent}, {"name": "tool_use", "template": CHAT}]
    config_json.write_text(json.dumps({"chat_template": named}))
    assert said in check(tmp_path, SFT, **sft(model, path=path))
    offers = {"message": TURNS, "tools": [{"type": "function", "function": {"name": "add"}}]}
    path = write_rows(tmp_path / "offers.jsonl", offers, offers)
    assert "leaves out `tools` (`add`)" in check(tmp_path, SFT, **sft(model, path=path))
    skipped = {"path": path, "on_bad_row": "skip"}
    assert "leaves out `tools` (`add`)" in check(tmp_path, SFT, **sft(model, **skipped))


def test_heads_that_the_engine_does_not_run_are_refused_without_a_gpu(tmp_path: Path) -> None:
    narrow = write_model(tmp_path / "narrow", hidden_size=64)
    taskset: dict[str, object] = {"path": write_rows(tmp_path / "t.jsonl", TASK)}
    said = check(tmp_path, **grpo(narrow, taskset))
    assert "has heads of 16, which vLLM does not run without a GPU" in said
    assert check(tmp_path, **grpo(narrow, taskset), cluster={"gpu_per_node": 2}) == ""


@pytest.mark.parametrize(
    ("model_keys", "size", "said"),
    [
        ({}, 2, ""),
        ({}, 3, "4 attention heads cannot be dealt out to 3 ranks evenly"),
        ({"num_key_value_heads": 3, "num_attention_heads": 6}, 2, "3 heads of keys and values"),
        ({"model_type": "opt"}, 2, "models of kind opt are not known to keep packed rows apart"),
    ],
)
def test_models_whose_sequences_ranks_cannot_share_are_refused(
    tmp_path: Path, model_keys: dict[str, object], size: int, said: str
) -> None:
    model = write_model(tmp_path / "shared", **model_keys)
    sharing = {"rank_num": size, "ulysses_sequence_parallel_size": size}
    path = write_rows(tmp_path / "sft.jsonl", MESSAGES)
    found = check(tmp_path, SFT, **sft(model, path=path), trainer=sharing)
    assert said in found
    assert ("`trainer.ulysses_sequence_parallel_size:" in found) is bool(said)


def test_a_model_that_verl_cannot_train_is_told_before_anything_starts(
    tmp_path: Path, model: str
) -> None:
    def said(**keys: object) -> str:
        (Path(model) / "config.json").write_text(json.dumps({"model_type": "mamba", **keys}))
        return check(tmp_path, **grpo(model, {"path": write_rows(tmp_path / "t.jsonl", TASK)}))

    assert "type `mamba`, whose configuration has no attention heads" in said()
    assert said(model_type="gpt2") == ""


@pytest.mark.parametrize(
    ("keys", "asked", "said"),
    [
        ({"attn_logit_softcapping": 50.0}, "sdpa", "would leave out the soft cap of scores"),
        ({"attn_logit_softcapping": 50.0}, "eager", ""),
        ({"attn_logit_softcapping": None}, "sdpa", ""),
        ({"model_type": "gpt_oss"}, "flash_attention_2", "would leave out the sinks"),
    ],
)
def test_an_attention_that_drops_a_part_of_the_model_is_refused(
    tmp_path: Path, keys: dict[str, object], asked: str, said: str
) -> None:
    model = write_model(tmp_path / "own", **{"model_type": "gemma2", **keys})
    found = check(
        tmp_path,
        SFT,
        **sft(model, path=write_rows(tmp_path / "sft.jsonl", MESSAGES)),
        cluster={"gpu_per_node": 8},
        trainer={"override_config": {"attn_implementation": asked}},
    )
    assert said in found
    assert bool(found) is bool(said), found


@pytest.mark.parametrize(
    ("model_keys", "engine", "said"),
    [
        ({"num_hidden_layers": 2}, {"pipeline_parallel_size": 2}, ""),
        (
            {"num_hidden_layers": 2},
            {"pipeline_parallel_size": 3},
            "`explorer.rollout_model.pipeline_parallel_size: 3` is more than the 2 layers",
        ),
        ({}, {"enable_expert_parallel": True}, "spreads experts, and the model"),
        ({"num_experts": 4}, {"enable_expert_parallel": True}, ""),
        ({"text_config": {"n_routed_experts": 4}}, {"enable_expert_parallel": True}, ""),
        ({}, {"tensor_parallel_size": 3}, "does not divide the 4 attention heads"),
    ],
)
def test_sizes_of_an_engine_that_the_model_does_not_have_are_refused(
    tmp_path: Path, model_keys: dict[str, object], engine: dict[str, object], said: str
) -> None:
    model = write_model(tmp_path / "spread", **model_keys)
    taskset: dict[str, object] = {"path": write_rows(tmp_path / "t.jsonl", TASK)}
    found = check(
        tmp_path,
        **grpo(model, taskset),
        cluster={"gpu_per_node": 8},
        explorer={"rollout_model": engine},
    )
    assert said in found
    assert bool(found) is bool(said), found


@pytest.mark.parametrize(
    ("model_keys", "gpus", "said"),
    [
        ({"model_type": "qwen3_moe", "num_experts": 4}, 8, ""),
        ({"model_type": "qwen3_moe", "num_experts": 4}, 0, "vLLM tells no experts without"),
        ({}, 8, "replays experts, and the model"),
        ({"model_type": "deepseek_v3", "n_routed_experts": 4}, 8, "is of kind deepseek_v3"),
    ],
)
def test_experts_that_cannot_be_replayed_are_refused(
    tmp_path: Path, model_keys: dict[str, object], gpus: int, said: str
) -> None:
    model = write_model(tmp_path / "mixture", **model_keys)
    taskset: dict[str, object] = {"path": write_rows(tmp_path / "t.jsonl", TASK)}
    found = check(
        tmp_path,
        **grpo(model, taskset),
        cluster={"gpu_per_node": gpus},
        algorithm={"enable_router_replay": True},
    )
    assert said in found
    assert bool(found) is bool(said), found


@pytest.mark.parametrize("key", ["router_aux_loss_coef", "router_z_loss_coef"])
def test_a_loss_of_gates_wants_experts(tmp_path: Path, key: str) -> None:
    taskset: dict[str, object] = {"path": write_rows(tmp_path / "t.jsonl", TASK)}
    dense = write_model(tmp_path / "dense")
    found = check(tmp_path, **grpo(dense, taskset), algorithm={key: 0.01})
    assert f"`algorithm.{key}` is for a mixture of experts" in found
    mixture = write_model(tmp_path / "mixture", model_type="qwen3_moe", num_experts=4)
    assert check(tmp_path, **grpo(mixture, taskset), algorithm={key: 0.01}) == ""


@pytest.mark.parametrize(
    ("asked", "gpus", "said"),
    [
        ("eager", 0, ""),
        ("flash_attention_2", 8, ""),
        ("kernels-community/flash-attn", 8, ""),
        ("flash_attention_2", 0, "is a kernel of GPUs, and stage"),
        ("flex_attention", 0, "is a kernel of GPUs, and stage"),
        ("flash_atention_2", 8, "no attention of transformers: did you mean `flash_attention_2`?"),
    ],
)
def test_an_attention_that_cannot_run_is_refused_before_anything_starts(
    tmp_path: Path, model: str, asked: str, gpus: int, said: str
) -> None:
    found = check(
        tmp_path,
        SFT,
        **sft(model, path=write_rows(tmp_path / "sft.jsonl", MESSAGES)),
        cluster={"gpu_per_node": gpus},
        trainer={"override_config": {"attn_implementation": asked}},
    )
    assert said in found
    assert bool(found) is bool(said), found


def test_sequences_longer_than_the_models_positions_are_refused(tmp_path: Path) -> None:
    short = write_model(tmp_path / "short", max_position_embeddings=8)
    path = write_rows(tmp_path / "sft.jsonl", MESSAGES)
    assert "exceeds the 8 positions" in check(tmp_path, SFT, **sft(short, path=path))


def test_a_model_that_is_not_there_is_named(tmp_path: Path) -> None:
    path = write_rows(tmp_path / "sft.jsonl", MESSAGES)
    absent = str(tmp_path / "absent")
    said = check(tmp_path, SFT, **sft(absent, path=path))
    assert said == (
        f"there is no model directory {absent}: create it or correct `model.model_path`"
    )


def test_a_hub_name_is_taken_unless_the_hub_is_switched_off(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    given = sft("Qwen/Tiny", path=write_rows(tmp_path / "sft.jsonl", MESSAGES))
    assert check(tmp_path, SFT, **given) == ""
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    assert "nor in the hub's cache" in check(tmp_path, SFT, **given)
    write_model(tmp_path / "cache/models--Qwen--Tiny/snapshots/abc")
    assert check(tmp_path, SFT, **given) == ""


def test_a_run_directory_that_cannot_be_made_is_named(tmp_path: Path, model: str) -> None:
    (tmp_path / "demo").write_text("in the way")
    path = write_rows(tmp_path / "sft.jsonl", MESSAGES)
    assert "change `checkpoint_root_dir`" in check(tmp_path, SFT, **sft(model, path=path))


@pytest.mark.parametrize("own", [True, False])
def test_a_chat_template_that_is_no_jinja_is_named(tmp_path: Path, model: str, own: bool) -> None:
    path = write_rows(tmp_path / "train.jsonl", TASK)
    changes = grpo(model, {"path": path})
    broken = "{% for message in messages %}{{ message }"
    if own:
        (Path(model) / "chat_template.jinja").write_text(broken)
    else:
        changes["model"] = {"model_path": model, "custom_chat_template": broken}
    assert "not valid Jinja (line 1" in check(tmp_path, **changes)


def test_a_chat_template_may_mark_what_the_assistant_said(tmp_path: Path, model: str) -> None:
    template = (
        "{% for m in messages %}{% generation %}{{ m.content }}{% endgeneration %}{% endfor %}"
    )
    (Path(model) / "chat_template.jinja").write_text(template)
    path = write_rows(tmp_path / "train.jsonl", TASK)
    assert check(tmp_path, **grpo(model, {"path": path})) == ""


@pytest.mark.parametrize(
    ("template", "said"),
    [
        ("{{ messages | join_up }}", "not valid Jinja (line 1: No filter named 'join_up'"),
        ("\n{{ messages is pretty }}", "(line 2: No test named 'pretty'"),
        ("{% generation %}{{ messages | join_up }}{% endgeneration %}", "'join_up'"),
        ("{% generation %}{{ messages }}", "Unexpected end of template"),
    ],
)
def test_a_chat_template_that_could_not_be_used_is_named(
    tmp_path: Path, model: str, template: str, said: str
) -> None:
    (Path(model) / "chat_template.jinja").write_text(template)
    path = write_rows(tmp_path / "train.jsonl", TASK)
    assert said in check(tmp_path, **grpo(model, {"path": path}))


def test_each_of_a_tokenizers_named_templates_is_looked_at(tmp_path: Path, model: str) -> None:
    named = [
        {"name": "default", "template": "{{ messages }}"},
        {"name": "tool_use", "template": "{{ messages"},
    ]
    config_file = Path(model) / "tokenizer_config.json"
    config_file.write_text(json.dumps({"chat_template": named}))
    path = write_rows(tmp_path / "train.jsonl", TASK)
    assert "chat template `tool_use` of the tokenizer" in check(
        tmp_path, **grpo(model, {"path": path})
    )


def test_a_chat_template_of_training_data_is_looked_at(tmp_path: Path, model: str) -> None:
    path = write_rows(tmp_path / "sft.jsonl", MESSAGES)
    form: object = {"chat_template": "{% for %}"}
    said = check(tmp_path, SFT, **sft(model, path=path, format=form, storage_type="file"))
    assert "experience buffer" in said
    assert "the chat template of `format` is not valid Jinja" in said
