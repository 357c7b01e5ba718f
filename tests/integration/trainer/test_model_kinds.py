"""Each kind of model, by each path of computing rows, has the gradients of `eager` row by row."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import CONFIG_MAPPING, AutoModelForCausalLM, PreTrainedModel
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from tests.unit.trainer.builders import data_row, make_plan
from tests.unit.trainer.model_kinds import FEATURES, PADDED, save_model, settings_of
from trinity.config.plan.arithmetic import PACKABLE
from trinity.errors import UserError

pytestmark = pytest.mark.usefixtures("ranks")

OWNERS = [0, 1, 0, 1, 0, 5, 6]
"""For each row the first row with its prompt."""
PROMPTS, ANSWERS = [4, 9, 4, 9, 4, 11, 1], [3, 5, 8, 12, 3, 10, 6]
TOLERANCE = 1e-5
"""Of a tensor's gradient, relative to its largest element. Gradients that are 0 but for rounding,
as those of biases of keys, are relative to a tenth of the largest of all."""
CASES = {
    **{f"{kind}, packed": (kind, settings_of(kind)) for kind in sorted(PACKABLE)},
    **{f"{kind}, padded": (kind, settings_of(kind, own)) for kind, own in PADDED.items()},
}
CHUNKED = {"use_fused_kernels": True}
UNPACKED = {"use_remove_padding": False}
Gradients = dict[str, torch.Tensor]
Settings = Mapping[str, object]


def chosen(attention: str) -> dict[str, object]:
    return {"override_config": {"attn_implementation": attention}}


_generator = np.random.default_rng(3)
_prompts = [_generator.integers(3, 99, length) for length in PROMPTS]
ROWS = [
    data_row(number, _prompts[owner], _generator.integers(3, 99, length))
    for number, (owner, length) in enumerate(zip(OWNERS, ANSWERS, strict=True))
]
WEIGHTS = [_generator.normal(size=length) for length in ANSWERS]


def of_eager(model: PreTrainedModel) -> Gradients:
    """The gradients of a weighted sum of log-probabilities, each row alone."""
    model.zero_grad()
    for row, weights in zip(ROWS, WEIGHTS, strict=True):
        tokens = torch.from_numpy(row.tokens.astype(np.int64))
        logprobs = model(input_ids=tokens[None], use_cache=False).logits[0].log_softmax(-1)
        taken = logprobs[:-1].gather(-1, tokens[1:, None])[row.prompt_length - 1 :, 0]
        (taken * torch.from_numpy(weights).float()).sum().backward()
    return {n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None}


class Built:
    """A model as the trainer builds it with these settings."""

    def __init__(self, directory: Path, trainer: Settings) -> None:
        from services.trainer.backend.verl_worker import build_actor

        plan = make_plan(directory, {"algorithm_type": "sft"}, trainer)
        self.engine = build_actor(plan, directory).engine
        self.packs = bool(self.engine.model_config.use_remove_padding)
        self.attention = self.engine.module.config._attn_implementation

    def gradients(self, *, shared: bool = False, whole_head: bool = False) -> Gradients:
        """The same as `of_eager`, of all rows in one micro-batch."""
        head = self.engine._head
        if whole_head:
            self.engine._head = None
        try:
            return self._gradients(shared=shared)
        finally:
            self.engine._head = head

    def _gradients(self, *, shared: bool) -> Gradients:
        from services.trainer.learner.prepared_batch import ResponseLayout
        from services.trainer.learner.verl_calls import EngineOutputs, MicroBatchBuilder

        layout, engine = ResponseLayout(ROWS), self.engine
        builder = MicroBatchBuilder(ROWS, layout, packed=self.packs, shares_prompts=shared)
        weights = layout.stack(WEIGHTS, np.float64)
        matrices: dict[str, Any] = {"loss_mask": layout.is_token_BT, "weights": weights}
        micro_batch = builder.build(range(len(ROWS)), matrices, EngineOutputs())
        assert ("prompt_owners" in micro_batch) is shared

        def weigh(
            model_output: dict[str, torch.Tensor], data: Any, dp_group: object
        ) -> tuple[torch.Tensor, dict[str, float]]:
            del dp_group
            return (model_output["log_probs"] * data["weights"]).sum(), {}

        engine.shares_prompts = shared
        with engine.train_mode():
            engine.module.eval()  # without what gates draw by chance
            engine.optimizer_zero_grad()
            loss, _ = engine.forward_step(micro_batch, weigh, forward_only=False)
            loss.backward()
            return {
                name: parameter.grad.full_tensor().clone()
                for name, parameter in engine.module.named_parameters()
                if parameter.grad is not None
            }


def error(expected: Gradients, found: Gradients) -> float:
    """The worst relative error of all tensors."""
    assert expected.keys() >= found.keys()
    top = max(float(gradient.abs().max()) for gradient in expected.values())
    return max(
        float((found.get(name, 0.0) - gradient).abs().max())
        / max(float(gradient.abs().max()), top / 10)
        for name, gradient in expected.items()
    )


@pytest.mark.parametrize("case", CASES)
def test_no_path_drops_a_part_of_a_model(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], case: str
) -> None:
    kind, settings = CASES[case]
    model = save_model(tmp_path, CONFIG_MAPPING[kind](**settings))
    expected = of_eager(model)
    usual = Built(tmp_path, CHUNKED)
    assert usual.packs is case.endswith("packed")
    found = {
        "usual": usual.gradients(whole_head=True),
        "chunked head": usual.gradients(),
        "eager": Built(tmp_path, chosen("eager")).gradients(),
    }
    if usual.packs:
        found["shared prompts"] = usual.gradients(shared=True)
        found["padded"] = Built(tmp_path, UNPACKED).gradients()
    errors = {path: error(expected, gradients) for path, gradients in found.items()}
    capsys.readouterr()
    assert max(errors.values()) < TOLERANCE, errors


FEATURED = {
    "sliding_window": "mistral",
    "attn_logit_softcapping": "gemma2",
    "final_logit_softcapping": "gemma2",
    "query_pre_attn_scalar": "gemma2",
    "attention_bias": "llama",
    "use_qkv_bias": "stablelm",
    "mlp_bias": "llama",
    "use_bias": "starcoder2",
    "attention_multiplier": "granite",
    "embedding_multiplier": "granite",
    "residual_multiplier": "granite",
    "logits_scaling": "granite",
    "logit_scale": "cohere",
    "clip_qkv": "olmo",
}
"""A kind that has the feature, for each of them."""
OFF: dict[str, object] = {
    "sliding_window": None,
    "attn_logit_softcapping": None,
    "final_logit_softcapping": None,
    "use_bias": False,
}
"""Values for those that kinds have by themselves."""


@pytest.mark.parametrize("feature", FEATURES)
def test_each_feature_of_the_table_changes_the_logits_of_a_kind_in_it(
    tmp_path: Path, feature: str
) -> None:
    kind = FEATURED[feature]
    settings = settings_of(kind)
    usual = getattr(CONFIG_MAPPING[kind](), feature)
    model = save_model(tmp_path, CONFIG_MAPPING[kind](**settings))
    without = AutoModelForCausalLM.from_config(
        CONFIG_MAPPING[kind](**{**settings, feature: OFF.get(feature, usual)}),
        attn_implementation="eager",
    ).eval()
    without.load_state_dict(model.state_dict(), strict=False)
    tokens = torch.arange(3, 24)[None]
    with torch.no_grad():
        difference = model(input_ids=tokens).logits - without(input_ids=tokens).logits
    assert float(difference.abs().max()) > 1e-3


def built_error(
    directory: Path, kind: str, trainer: Settings, own: Settings | None = None
) -> float:
    model = save_model(directory, CONFIG_MAPPING[kind](**settings_of(kind, own)))
    return error(of_eager(model), Built(directory, trainer).gradients())


@pytest.mark.parametrize("kind", ["gemma2", "gpt_oss", "vaultgemma"])
def test_scores_that_our_attention_leaves_as_they_are_are_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """The control for soft caps and sinks of packed rows."""
    from services.trainer.backend import packed_attention

    monkeypatch.setattr(packed_attention, "_by_scores", packed_attention._sdpa)
    assert built_error(tmp_path, kind, {}) > 1e-2


@pytest.mark.parametrize("kind", ["mistral", "gemma2", "gpt_oss"])
def test_a_window_that_our_attention_forgets_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    from services.trainer.backend import packed_attention

    sound = packed_attention._band
    monkeypatch.setattr(
        packed_attention, "_band", lambda length, _, device: sound(length, length, device)
    )
    assert built_error(tmp_path, kind, {}) > 1e-2


@pytest.mark.parametrize("kind", ["gemma2", "falcon"])
def test_sdpa_that_is_taken_for_what_it_drops_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    from services.trainer.backend import verl_worker

    monkeypatch.setattr(verl_worker, "dropped_by", lambda *_: None)
    monkeypatch.setitem(ALL_ATTENTION_FUNCTIONS, "sdpa", sdpa_attention_forward)
    assert built_error(tmp_path, kind, UNPACKED, PADDED.get(kind)) > 1e-2


def test_a_model_that_no_key_betrays_is_refused_where_sdpa_would_drop_its_cap(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As code that comes with a model may have any keys."""
    from services.trainer.backend import verl_worker

    monkeypatch.setattr(verl_worker, "dropped_by", lambda *_: None)
    with pytest.raises(UserError, match=r"`sdpa` would leave out the soft cap.*Gemma2Attention"):
        built_error(tmp_path, "gemma2", UNPACKED)


@pytest.mark.parametrize("role", ["actor", "reference", "critic", "teacher"])
@pytest.mark.parametrize("kind", ["gemma2", "gpt_oss"])
def test_no_role_has_an_attention_that_drops_a_part(tmp_path: Path, kind: str, role: str) -> None:
    from services.trainer.backend import verl_worker

    save_model(tmp_path, CONFIG_MAPPING[kind](**settings_of(kind)))
    for trainer, attention in (({}, "trinity_packed"), (UNPACKED, "eager")):
        plan = make_plan(tmp_path, {"algorithm_type": "ppo"}, trainer)
        worker = getattr(verl_worker, f"build_{role}")(plan, tmp_path)
        assert worker.engine.module.config._attn_implementation == attention


def test_keys_that_a_config_json_leaves_out_count_as_transformers_has_them(tmp_path: Path) -> None:
    save_model(tmp_path, CONFIG_MAPPING["gemma2"](**settings_of("gemma2")))
    for left_out in ("attn_logit_softcapping", "final_logit_softcapping"):
        change_config(tmp_path, left_out)
    whole = AutoModelForCausalLM.from_pretrained(
        tmp_path, attn_implementation="eager", dtype=torch.float32
    )
    assert whole.config.attn_logit_softcapping == 50.0
    built = Built(tmp_path, {**UNPACKED, **CHUNKED})
    assert built.attention == "eager"
    assert error(of_eager(whole.eval()), built.gradients()) < TOLERANCE


def change_config(directory: Path, left_out: str) -> None:
    file = directory / "config.json"
    keys = json.loads(file.read_text())
    del keys[left_out]
    file.write_text(json.dumps(keys))
