"""What a start says of mistakes on this machine, and the commands that it advises."""

import shlex
from pathlib import Path

import pytest

from tests.unit.config.builders import GRPO, config, stage, write_model, write_rows
from trinity.cli.experiment import RunOptions, print_next_steps
from trinity.cli.overrides import parse_overrides
from trinity.config.checks.advice import advise
from trinity.config.planning import plan_experiment
from trinity.errors import UserError
from trinity.run.launch.prepare import prepare_run
from trinity.weights.manifest import ManifestHead, seal
from trinity.weights.stored import model_lines

TEXT = """\
checkpoint_root_dir: {root}
model: {{model_path: {model}, max_prompt_tokens: 8, max_response_tokens: 8}}
algorithm: {{algorithm_type: grpo}}
buffer:
  batch_size: 1
  total_steps: 1
  explorer_input:
    default_workflow_type: simple_workflow
    default_reward_fn_type: exact_match_reward
    taskset: {{path: {rows}, format: {{prompt_key: question, response_key: answer}}}}
"""
SERVED = """\
service: {data_juicer: {server_url: "http://127.0.0.1:9"}}
data_processor:
  experience_pipeline:
    operators:
      - {name: data_juicer, args: {config_path: nowhere.yaml}}
"""


def test_what_is_not_on_this_machine_is_told_with_its_line(tmp_path: Path) -> None:
    rows = write_rows(tmp_path / "rows.jsonl", {"question": "1+1=", "answer": "2"})
    file = tmp_path / "x.yaml"
    text = TEXT.format(root=tmp_path, model="/nowhere/model", rows=rows) + SERVED
    file.write_text(text)
    assert [line for line, _ in told(file)] == ["2", "15"]
    assert "operators[0].args.config_path: nowhere.yaml` is no file" in told(file)[1][1]
    file.write_text(text.replace(rows, "/nowhere/rows.jsonl"))
    assert [line for line, _ in told(file)] == ["2", "10", "15"]


def told(file: Path) -> list[tuple[str, str]]:
    """The line and the text of each mistake."""
    with pytest.raises(UserError) as refused:
        prepare_run(file, None)
    parts = [text.partition(f"{file}:")[2] for text in str(refused.value).splitlines()]
    return [(line, text) for line, _, text in (part.partition(":") for part in parts)]


def test_an_advised_command_has_the_words_of_the_command_that_was_typed() -> None:
    options = RunOptions(
        config=Path("my runs/x.yaml"),
        overrides=("name=a b", "buffer.total_steps=3"),
        dry_run=False,
        strict=False,
        max_steps=2,
        plugins=("--plugin-dir", "mine"),
    )
    end = "--plugin-dir mine --accept-changes 'name=a b' buffer.total_steps=3"
    assert options.accept_command.endswith(f"--config 'my runs/x.yaml' --max-steps 2 {end}")
    assert options.resume_command == options.accept_command.replace(" --accept-changes", "")


def test_fewer_tokens_of_a_gpu_than_one_sequence_block_nothing_and_are_said() -> None:
    few = plan_experiment(config(GRPO, trainer={"max_token_len_per_gpu": 5}))
    [said] = [text for text in advise(few) if "`trainer.max_token_len_per_gpu: 5`" in text]
    assert "24 tokens" in said
    enough = plan_experiment(config(GRPO, trainer={"max_token_len_per_gpu": 24}))
    assert not any("max_token_len_per_gpu" in text for text in advise(enough))


def test_training_and_evaluation_may_use_one_name() -> None:
    place = {"name": "train", "path": "/data/test.jsonl"}
    both = stage(GRPO, buffer={"explorer_input": {"eval_tasksets": [place]}})
    assert [tasks.path for tasks in both.eval_tasksets] == ["/data/test.jsonl"]
    with pytest.raises(UserError, match="are called `twice`"):
        twice = {**place, "name": "twice"}
        stage(GRPO, buffer={"explorer_input": {"eval_tasksets": [twice, twice]}})


def test_a_port_beside_the_address_of_a_server_blocks_nothing() -> None:
    server = {"server_url": "http://127.0.0.1:5005", "port": 5006}
    assert plan_experiment(config(GRPO, service={"data_juicer": server}))


def stored_version(folder: Path, version: int) -> None:
    write_model(folder)
    seal(
        folder,
        ManifestHead(
            kind="weights", stage="main", step=version, incarnation=1, weights_sha256="0" * 64
        ),
    )


@pytest.mark.parametrize("max_steps", [None, 2])
@pytest.mark.parametrize("has_best", [True, False])
def test_the_commands_at_the_end_of_a_run_work_as_they_are_printed(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    max_steps: int | None,
    *,
    has_best: bool,
) -> None:
    rows = write_rows(tmp_path / "rows.jsonl", {"question": "1+1=", "answer": "2"})
    model = write_model(tmp_path / "a model")
    file = tmp_path / "x.yaml"
    stages = "stages:\n  - {stage_name: main, mode: both}\n"
    file.write_text(TEXT.format(root=tmp_path, model=f'"{model}"', rows=rows) + stages)
    words = ("name=mine", "stages[0].trainer.total_steps=1", "model.temperature=0.5")
    options = RunOptions(
        config=file,
        overrides=words,
        dry_run=False,
        strict=False,
        max_steps=max_steps,
    )
    plan = prepare_run(file, max_steps, parse_overrides(words)).plan
    print_next_steps(plan, options)
    assert capsys.readouterr().out == "", "nothing was trained"
    weights = plan.job_path / "stages" / "main" / "weights"
    for version, name in ((9, "v9-2"), (10, "v10-1"), (10, "v10-2")):
        stored_version(weights / name, version)
    best = plan.job_path / "stages" / "main" / "best"
    if has_best:
        stored_version(best, 9)
        (best / "chat_template.jinja").write_text("{{ messages }}")
    named = [f"best model    {best} (version 9)"] if has_best else []
    newest = weights / "v10-2"
    assert model_lines(plan.job_path, ["main"]) == [
        *named,
        f"newest model  {newest} (version 10)",
    ]
    print_next_steps(plan, options)
    _, load, serve, see = map(shlex.split, capsys.readouterr().out.splitlines())
    compile(load[-1], "load", "exec")
    assert f'"{best if has_best else newest}"' in load[-1]
    assert ('[{"role": "user", ' in load[-1]) == has_best, (
        "a model with a chat template is asked so"
    )
    assert see[-2:] == ["studio", str(plan.job_path)]
    assert serve[2:6] == ["trinity", "run", "--config", str(file)]
    limit = int(serve[serve.index("--max-steps") + 1]) if "--max-steps" in serve else None
    served = prepare_run(file, limit, parse_overrides([w for w in serve[6:] if "=" in w])).plan
    [stage_] = served.stages
    assert (stage_.mode, stage_.served is None) == ("serve", False)
    assert stage_.served is not None
    if has_best:
        assert stage_.model_path == str(best)
        assert stage_.served.job_dir != plan.job_dir
    else:
        assert stage_.served.job_dir == plan.job_dir
