"""`trainer.trainer_config_path`: verl's keys from a file of their own."""

from pathlib import Path

import pytest
from pydantic import JsonValue

from trinity.config.check import CheckReport, check_file

MINE = """
model: {{model_path: /models/m, max_model_len: 64}}
buffer:
  batch_size: 8
  explorer_input: {{taskset: {{path: /d, default_workflow_type: math_workflow}}}}
trainer:
  trainer_config_path: {file}
"""
VERLS = """
actor_rollout_ref:
  actor:
    grad_clip: 0.5
    optim: {lr: 3e-5, lr_warmup_steps: "${actor_rollout_ref.actor.ppo_epochs}"}
    ppo_epochs: 2
"""
MINE_LINE = 7


def checked(
    directory: Path, verls: str, more: str = "", overrides: dict[str, JsonValue] | None = None
) -> CheckReport:
    (directory / "verl.yaml").write_text(verls)
    mine = directory / "mine.yaml"
    mine.write_text(MINE.format(file=directory / "verl.yaml") + more)
    return check_file(mine, overrides)


def test_its_keys_act_as_those_below_trainer_config(tmp_path: Path) -> None:
    report = checked(tmp_path, VERLS)
    assert report.errors == ()
    assert report.plan
    (stage,) = report.plan.stages
    assert (stage.config.trainer.grad_clip, stage.config.trainer.ppo_epochs) == (0.5, 2)
    optimizer = stage.config.algorithm.optimizer
    assert (optimizer.lr, optimizer.lr_warmup_steps) == (3e-5, 2)
    assert {notice.line for notice in report.notices} == {MINE_LINE}


@pytest.mark.parametrize("what", ["actor_rollout_ref: {actor: {no_such: 1}}", "no_such: 1"])
def test_what_verl_does_not_have_is_told_by_the_line_of_the_file(tmp_path: Path, what: str) -> None:
    report = checked(tmp_path, what)
    (notice,) = report.reading.planned if report.reading else ()
    assert (notice.line, "no_such" in notice.key) == (MINE_LINE, True)


@pytest.mark.parametrize(
    ("verls", "says"),
    [
        ("actor_rollout_ref: {actor: {grad_clp: 0.5}}", "did you mean `actor.grad_clip`?"),
        ("actor_rollout_ref: {actor: {entropy_coeff: 0.1}}", "entropy_loss_fn_args.entropy_coef"),
        ("actor_rollout_ref: {actor: {clip_ratio: 0.1}}", "policy_loss_fn_args.clip_range"),
        ("algorithm: {gamma: 0.9}", "`algorithm.advantage_fn_args.gamma`"),
        ("rollout_correction: {bypass_mode: false}", "`algorithm.bypass_old_logprobs`"),
        ("trainer: {save_freq: 20}", "`trainer.save_interval`"),
    ],
)
def test_a_key_with_a_counterpart_is_told_its_name(tmp_path: Path, verls: str, says: str) -> None:
    report = checked(tmp_path, verls)
    (notice,) = report.reading.planned if report.reading else ()
    assert says in notice.text


def test_what_corrects_rollouts_is_used(tmp_path: Path) -> None:
    asked = "{bypass_mode: false, rollout_is: token, rollout_is_threshold: 3.0}"
    report = checked(tmp_path, f"algorithm: {{rollout_correction: {asked}}}")
    assert report.errors == () and report.plan is not None
    algorithm = report.plan.stages[0].algorithm
    assert not algorithm.bypass_old_logprobs
    assert algorithm.rollout_correction.rollout_is_threshold == 3.0


MEGATRON = "actor_rollout_ref: {actor: {strategy: megatron, megatron: {%s}}}"


def test_sizes_of_megatron_have_no_effect_and_what_changes_a_result_is_told(tmp_path: Path) -> None:
    report = checked(tmp_path, MEGATRON % "tensor_model_parallel_size: 2, param_offload: true")
    assert report.errors == () and report.reading is not None and report.plan is not None
    assert report.reading.planned == ()
    assert report.plan.stages[0].config.trainer.param_offload
    other = "override_transformer_config: {moe_aux_loss_coeff: 0.01}"
    unlike = checked(tmp_path, MEGATRON % other)
    assert unlike.reading is not None and len(unlike.reading.planned) == 1


@pytest.mark.parametrize("name", ["megatron", "veomni"])
def test_another_back_end_is_said_once_and_fsdp2_trains(name: str, tmp_path: Path) -> None:
    section = f"{{strategy: {name}}}"
    verls = f"actor_rollout_ref: {{actor: {section}, ref: {section}}}\ncritic: {section}"
    plain = checked(tmp_path, VERLS)
    mine = (tmp_path / "mine.yaml").read_text()
    for text, files in ((f"  trainer_strategy: {name}\n", VERLS), ("", verls), ("both", verls)):
        (tmp_path / "verl.yaml").write_text(files)
        more = f"  trainer_strategy: {name.upper()}\n" if text == "both" else text
        (tmp_path / "mine.yaml").write_text(mine + more)
        report = check_file(tmp_path / "mine.yaml")
        assert report.errors == () and report.reading and report.plan
        assert report.reading.planned == ()
        (said,) = [notice for notice in report.notices if "strategy" in notice.key]
        assert said.text.startswith("FSDP2 trains in ")
        assert report.plan.stages[0].config.trainer.trainer_strategy == "fsdp2"
    assert not [notice for notice in plain.notices if "strategy" in notice.key]


def test_a_default_of_verls_needs_no_notice_and_a_real_key_no_guess(tmp_path: Path) -> None:
    plain = checked(tmp_path, "actor_rollout_ref: {actor: {entropy_coeff: 0, clip_ratio: 0.2}}")
    assert plain.reading is not None
    assert plain.reading.planned == ()
    real = checked(tmp_path, "actor_rollout_ref: {actor: {use_torch_compile: false}}")
    (notice,) = real.reading.planned if real.reading else ()
    assert "did you mean" not in notice.text


def test_a_mode_among_the_losss_arguments_is_the_algorithms(tmp_path: Path) -> None:
    more = "algorithm: {policy_loss_fn_args: {loss_agg_mode: token-sum, clip_range: 0.1}}\n"
    report = checked(tmp_path, VERLS, more)
    assert report.errors == ()
    assert report.plan
    algorithm = report.plan.stages[0].config.algorithm
    assert algorithm.loss_agg_mode == "token-sum"
    assert algorithm.policy_loss_fn_args == {"clip_range": 0.1}


@pytest.mark.parametrize(
    ("verls", "says"),
    [("- 1", "is a list: write `key: value` lines"), ("a: [", "is not valid YAML")],
)
def test_what_is_no_configuration_is_refused(tmp_path: Path, verls: str, says: str) -> None:
    (mistake,) = checked(tmp_path, verls).errors
    assert mistake.startswith(f"`trainer.trainer_config_path: {tmp_path}/verl.yaml` in ")
    assert f"mine.yaml:{MINE_LINE}" in mistake and says in mistake


def test_a_variable_that_is_not_set_is_told_with_both_files(tmp_path: Path) -> None:
    (mistake,) = checked(tmp_path, "actor: {grad_clip: '${oc.env:NO_SUCH}'}").errors
    assert f"mine.yaml:{MINE_LINE}" in mistake and "verl.yaml:1" in mistake
    assert "NO_SUCH is not set" in mistake


def test_one_of_the_two_is_kept(tmp_path: Path) -> None:
    (mistake,) = checked(tmp_path, VERLS, "  trainer_config: {actor: {grad_clip: 1.0}}").errors
    assert mistake.endswith("is given beside `trainer.trainer_config`: keep one of the two")


def test_the_command_line_may_name_it(tmp_path: Path) -> None:
    other = tmp_path / "other.yaml"
    other.write_text("actor: {grad_clip: 0.25}")
    report = checked(tmp_path, VERLS, overrides={"trainer.trainer_config_path": str(other)})
    assert report.plan and report.plan.stages[0].config.trainer.grad_clip == 0.25
    assert {notice.place for notice in report.notices} == {"on the command line"}
