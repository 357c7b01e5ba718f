"""Manifests hold nothing of the machine that rendered, and are YAML that all readers agree on."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner

from tests.unit.config.builders import SFT, config, write_model, write_rows
from tests.unit.deploy.manifests import SHIPPED
from trinity.cli.main import make_app
from trinity.config.planning import plan_experiment
from trinity.run.deploy.deployment import with_root
from trinity.run.deploy.submission import read_plan

TARGETS = [
    ("compose", "one-node"),
    ("k8s", "one-node"),
    ("k8s", "cluster"),
    ("nomad", "one-node"),
    ("nomad", "cluster"),
]
OCTAL = re.compile(r"^\s*[\w-]*[mM]ode: 0\d+", re.MULTILINE)
ANCHOR = (yaml.AnchorToken, yaml.AliasToken)


@pytest.fixture(scope="module", params=TARGETS, ids="-".join)
def folder(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Path]:
    """A rendering of files that are named relative to the folder it is made in."""
    here = tmp_path_factory.mktemp("machine")
    write_model(here / "model", num_hidden_layers=2, vocab_size=64)
    (here / "plugins").mkdir()
    write_rows(here / "sft.jsonl", {"messages": []})
    rows = {"storage_type": "file", "path": "sft.jsonl"}
    given = SFT | {
        "model": {"model_path": "./model", "max_model_len": 24},
        "checkpoint_root_dir": "./runs",
        "buffer": {
            "train_batch_size": 16,
            "total_steps": 5,
            "trainer_input": {"experience_buffer": rows},
        },
    }
    (here / "x.yaml").write_text(yaml.safe_dump(given))
    target, overlay = request.param
    words = ["-c", "x.yaml", "-o", "out", "--plugin-dir", "plugins"]
    command = ["deploy", "render", *words, "--target", target, "--overlay", overlay]
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(here)
        patch.delenv("TRINITY_PLUGIN_DIRS", raising=False)
        done = CliRunner().invoke(make_app(command), command)
        assert done.exit_code == 0, f"{done.output}{done.exception}"
        patch.delenv("TRINITY_PLUGIN_DIRS", raising=False)
    yield here / "out"


def files(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_file()]


def test_no_path_of_the_machine_that_rendered_is_left(folder: Path) -> None:
    for file in files(folder):
        assert str(folder.parent) not in file.read_text(), file
    plan = read_plan(folder / "plan.json")
    assert plan.job_dir == "/trinity/runs/demo/warm"
    assert plan.stages[0].model_path == "/trinity/model"
    text = "".join(file.read_text() for file in files(folder))
    for place in ("/trinity/model", "/trinity/runs/demo/warm", "/trinity/plugins"):
        assert place in text.replace("trinity/run/", ""), "they are mounted"


def test_the_model_is_sized_where_it_is_read(folder: Path) -> None:
    """Its path in the plan is one of the nodes."""
    sized = {
        "compose.override.yaml": "memory: ",
        "trainer.yaml": "memory: ",
        "experiment.vars.json": '"memory": ',
    }
    for name, text in sized.items():
        if (folder / name).exists():
            assert text in (folder / name).read_text().partition("trainer")[2], name


def test_there_is_no_anchor_and_no_octal_mode(folder: Path) -> None:
    for file in files(folder):
        if file.suffix in (".yaml", ".yml"):
            text = file.read_text()
            assert not [token for token in yaml.scan(text) if isinstance(token, ANCHOR)], file
            assert not OCTAL.search(text), file


def test_the_checks_see_what_they_look_for() -> None:
    """In compose's own file, which is resolved on the way, and in what modes looked like."""
    tokens = yaml.scan((SHIPPED / "compose.yaml").read_text())
    assert any(isinstance(token, ANCHOR) for token in tokens)
    assert OCTAL.search("  defaultMode: 0440\n") and OCTAL.search("mode: 0755")


def test_compose_is_what_it_was_with_its_anchors(folder: Path) -> None:
    if not (folder / "compose.yaml").exists():
        return
    resolved = yaml.safe_load((folder / "compose.yaml").read_text())
    shipped = yaml.safe_load((SHIPPED / "compose.yaml").read_text())
    assert resolved == {key: value for key, value in shipped.items() if not key.startswith("x-")}
    override = yaml.safe_load((folder / "compose.override.yaml").read_text())
    (model, *_) = (
        one
        for one in override["services"]["trainer"]["volumes"]
        if one["target"] == "/trinity/model"
    )
    assert model["source"] == "${TRINITY_ROOT:-..}/model"


def test_paths_that_are_given_whole_are_those_of_the_nodes(tmp_path: Path) -> None:
    """Also where the machine that renders happens to have such a folder."""
    plan = plan_experiment(config(SFT, checkpoint_root_dir=str(tmp_path / "runs")))
    kept = with_root(plan, tmp_path, "/trinity")
    assert kept == plan and kept.job_dir.startswith(f"{tmp_path}/runs/")
