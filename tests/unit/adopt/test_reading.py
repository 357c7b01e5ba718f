"""A fork is read, not imported: its parts, what they need, and what is not as in the fork."""

import json
from pathlib import Path

import pytest

from tests.unit.adopt.forks import CHANGED, FILES, know_base, traced, write_fork
from trinity.cli.adopt import adopt, changed_text
from trinity.errors import UserError
from trinity.plugins import load_file
from trinity.user_code.adopt.adoption import Adoption, read_checkout
from trinity.user_code.adopt.adoption import adopt as adopt_parts
from trinity.user_code.adopt.gathering import PRIVATE
from trinity.user_code.adopt.upstream import Origin, Upstream

PRIVATE_FLOWS = f"{PRIVATE}trinity_common_workflows_workflow"
SHOP = "trinity.common.workflows.envs.shop"


@pytest.fixture
def fork(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    know_base(monkeypatch)
    return write_fork(tmp_path / "fork")


def adopted(fork: Path, *names: str) -> Adoption:
    return adopt_parts(read_checkout(fork), set(names) or None)


def parts(adoption: Adoption) -> set[tuple[str, str, str]]:
    return {(part.registry, part.name, part.module) for part in adoption.adopted.parts}


def test_parts_are_found_in_tables_decorators_and_calls(fork: Path) -> None:
    assert parts(adopted(fork)) == {
        ("WORKFLOWS", "shop_workflow", f"{SHOP}.flow"),
        ("WORKFLOWS", "polite_workflow", PRIVATE_FLOWS),
        ("ALGORITHM_TYPE", "shop_grpo", f"{PRIVATE}trinity_algorithm_algorithm"),
        ("ADVANTAGE_FN", "shop", "trinity.algorithm.advantage_fn.shop_advantage"),
        ("EXPERIENCE_OPERATORS", "shop_filter", "trinity.buffer.operators.shop_filter"),
        ("REWARD_FUNCTIONS", "short_reward", "rl.rewards"),
    }


def test_nothing_of_a_fork_is_imported(fork: Path, tmp_path: Path) -> None:
    adopt(fork, None, tmp_path / "out")
    assert traced(fork) == []
    load_file(fork / "trinity/common/workflows/envs/shop/words.py")
    assert len(traced(fork)) == 1, "an import does leave a trace"


def test_a_part_brings_what_its_file_imports(fork: Path) -> None:
    adoption = adopted(fork, "shop_workflow", "short_reward")
    files = {file.module: file for file in adoption.adopted.files}
    assert files.keys() == {
        *(f"{SHOP}.{name}" for name in ("flow", "prices", "words")),
        PRIVATE_FLOWS,
        "helpers",
        "rl.rewards",
    }
    flow = files[f"{SHOP}.flow"]
    assert flow.moved == {"trinity.common.workflows.PoliteWorkflow": PRIVATE_FLOWS}
    assert flow.absent.keys() == {"trinity.common.config.ShopConfig"}
    assert any("flow.py, line 12: `shopsim` is not installed" in s for s in adoption.sentences)
    assert any("`ShopConfig` of trinity.common.config is not here" in s for s in adoption.sentences)


def test_of_a_changed_file_the_added_definitions_are_taken(fork: Path) -> None:
    adoption = adopted(fork, "polite_workflow")
    [file] = adoption.adopted.files
    wanted = {"GREETING", "PoliteWorkflow", "polite", "WORKFLOWS"}
    assert wanted <= set(file.keep) and "MathWorkflow" not in file.keep
    assert file.here["SimpleWorkflow"] == "trinity.common.workflows.workflow"
    line = CHANGED.splitlines().index("class SimpleWorkflow(Workflow):") + 1
    [sentence] = [s for s in adoption.sentences if " changes " in s]
    assert f"`SimpleWorkflow` (line {line})" in sentence and "MathWorkflow" not in sentence
    assert "trinity.rft.workflows.workflow.SimpleWorkflow takes its place" in sentence


def test_an_algorithm_takes_the_parts_that_it_names(fork: Path) -> None:
    named = {name for _, name, _ in parts(adopted(fork, "shop_grpo"))}
    assert named == {"shop_grpo", "shop"}


def test_of_two_parts_of_one_name_the_tables_is_taken_and_both_are_named(fork: Path) -> None:
    text = FILES["trinity/buffer/operators/shop_filter.py"]
    other = text.replace("shop_filter", "shop_workflow").replace(
        "EXPERIENCE_OPERATORS", "WORKFLOWS"
    )
    (fork / "rl/other.py").write_text(other)
    adoption = adopted(fork, "shop_workflow")
    assert ("WORKFLOWS", "shop_workflow", f"{SHOP}.flow") in parts(adoption)
    assert any("two parts are the workflow `shop_workflow`" in s for s in adoption.sentences)


def test_a_file_that_cannot_be_read_is_named_and_the_rest_is_taken(fork: Path) -> None:
    (fork / "rl/broken.py").write_text("def (:\n")
    adoption = adopted(fork)
    assert any(s.startswith("rl/broken.py is left out") for s in adoption.sentences)
    assert len(adoption.adopted.parts) == 6


def test_a_fork_of_an_unknown_base_says_so(fork: Path) -> None:
    assert any("its base is unknown" in s for s in adopted(fork).sentences)
    (fork / "trinity/common/workflows/workflow.py").unlink()
    assert any("its base is unknown" in s for s in adopted(fork).sentences)


def test_a_folder_that_is_no_fork_is_refused(tmp_path: Path) -> None:
    (tmp_path / "plugins").mkdir()
    (tmp_path / "plugins/mine.py").write_text("")
    with pytest.raises(UserError, match=r"is no copy of Trinity-RFT.*--plugin-dir"):
        read_checkout(tmp_path)


def test_links_out_of_the_fork_are_not_followed(fork: Path, tmp_path: Path) -> None:
    (tmp_path / "secret.py").write_text("KEY = 1\n")
    (fork / "rl/linked.py").symlink_to(tmp_path / "secret.py")
    assert "rl/linked.py" not in read_checkout(fork).files
    assert "rl/rewards.py" in read_checkout(fork).files


def test_paths_of_the_fork_become_absolute_and_comments_stay(fork: Path, tmp_path: Path) -> None:
    file = fork / "rl/run.yaml"
    file.write_text(
        "# mine\nname: rl\nbuffer:\n  path: rl/rows  # made by hand\n  model_path: a/b\n"
    )
    adopt(fork, Path("rl/run.yaml"), tmp_path / "out")
    assert (tmp_path / "out/run.yaml").read_text() == (
        f'# mine\nname: rl\nbuffer:\n  path: "{fork}/rl/rows"  # made by hand\n  model_path: a/b\n'
    )
    assert changed_text("path: ${oc.env:X}/rl\n", fork) == "path: ${oc.env:X}/rl\n"
    assert json.loads((tmp_path / "out/adopted.json").read_text())["parts"] == []


def test_files_of_others_are_not_overwritten(fork: Path, tmp_path: Path) -> None:
    (tmp_path / "adopted.json").write_text('{"mine": 1}')
    with pytest.raises(UserError, match="is no file of `trinity adopt`"):
        adopt(fork, None, tmp_path)
    (fork / "run.yaml").write_text("name: a\n")
    (tmp_path / "out").mkdir()
    (tmp_path / "out/run.yaml").write_text("name: mine\n")
    with pytest.raises(UserError, match="exists: give another folder"):
        adopt(fork, Path("run.yaml"), tmp_path / "out")


def test_the_table_has_every_published_version() -> None:
    table = Upstream.read()
    assert sum(map(len, table.ids.values())) == 3113
    assert "MathWorkflow" in table.definitions["trinity/common/workflows/workflow.py"]
    assert table.origin("trinity/common/workflows/workflow.py", b"other") is Origin.CHANGED
    assert table.origin("rl/rewards.py", b"") is Origin.OWN
