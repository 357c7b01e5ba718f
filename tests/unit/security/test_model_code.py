"""Code that comes with a model runs where the operator, or an absence of credentials, allows it."""

import json
import logging
from pathlib import Path

import pytest

from tests.unit.config.builders import stage, write_model
from trinity.config.checks.advice import advise
from trinity.config.model_code_policy import VARIABLE, trusts_model_code
from trinity.config.plan.model_code import model_code
from trinity.config.plan.stage_plan import ExperimentPlan
from trinity.config.planning import plan_experiment
from trinity.errors import UserError


@pytest.fixture
def model(tmp_path: Path) -> str:
    path = Path(write_model(tmp_path / "model"))
    (path / "modeling_own.py").write_text("")
    classes = {"AutoConfig": "modeling_own.Own", "AutoModel": ["some/other--modeling.X", None]}
    described = json.loads((path / "config.json").read_text())
    (path / "config.json").write_text(json.dumps({**described, "auto_map": classes}))
    return str(path)


def secured(tmp_path: Path) -> dict[str, str]:
    folder = tmp_path / "credentials"
    folder.mkdir()
    for name in ("ca.crt", "tls.crt", "tls.key", "token", "token-keys.pem"):
        (folder / name).write_text("x")
    return {"TRINITY_SECURITY_DIR": str(folder)}


def test_without_credentials_code_runs_and_is_named(
    model: str, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        assert trusts_model_code(True, model, {})
    [record] = caplog.records
    assert vars(record)["code"] == "modeling_own.py, code of some/other on the hub"


def test_a_process_with_credentials_runs_code_at_its_operators_word_alone(
    tmp_path: Path, model: str
) -> None:
    environment = secured(tmp_path)
    with pytest.raises(UserError, match=rf"would run modeling_own.py.*{VARIABLE}=true"):
        trusts_model_code(True, model, environment)
    assert trusts_model_code(True, model, {**environment, VARIABLE: "true"})


def test_an_operator_may_forbid_it_on_loopback_too(model: str) -> None:
    with pytest.raises(UserError, match="its operator may allow that"):
        trusts_model_code(True, model, {VARIABLE: "false"})
    with pytest.raises(UserError, match=f"{VARIABLE} is `yes`: give true or false"):
        trusts_model_code(True, model, {VARIABLE: "yes"})


def test_code_that_nobody_asked_for_does_not_run(model: str) -> None:
    assert not trusts_model_code(False, model, {VARIABLE: "true"})


def test_a_model_that_is_not_here_brings_what_the_hub_has(tmp_path: Path) -> None:
    assert model_code("nobody/has-this") == "what the hub has for it"
    assert model_code(write_model(tmp_path / "plain")) == ""


def test_config_check_names_the_code(model: str) -> None:
    from tests.unit.config.builders import config

    section: dict[str, object] = {"model_path": model, "trust_remote_code": True}
    plan: ExperimentPlan = plan_experiment(config(model=section))
    assert any("runs modeling_own.py" in line for line in advise(plan))
    section["trust_remote_code"] = False
    assert not any(
        "modeling_own.py" in line for line in advise(plan_experiment(config(model=section)))
    )


def test_the_engine_is_told_only_if_code_is_trusted(model: str) -> None:
    from services.explorer.engine.interface import EngineOptions
    from services.explorer.engine.vllm_options import Hardware, engine_arguments

    rollout = stage().config.explorer.rollout_model
    for trusts in (True, False):
        options = EngineOptions(
            model_path=model, max_model_len=8, end_token_ids=(), rollout=rollout, trusts_code=trusts
        )
        arguments = engine_arguments(options, Hardware(has_gpu=False, num_cpus=1))
        assert arguments.get("trust_remote_code", False) is trusts
