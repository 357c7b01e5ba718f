"""Functions of a copy of veRL are compared with all versions of veRL's."""

import inspect
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.unit.subtests import as_subtests
from tests.unit.verl.copies import YAML
from trinity.verl.convert import convert
from trinity.verl.fork_functions import functions_of, own_functions
from trinity.verl.settings import read_sources

CORE = "verl/trainer/ppo/core_algos.py"
TITLE = "Changed in your veRL, and not converted: port it if it matters:"


def of_verl(name: str) -> str:
    """The source of a function of the installed veRL's."""
    verl = find_spec("verl")
    assert verl is not None and verl.submodule_search_locations
    file = Path(verl.submodule_search_locations[0]) / "trainer" / "ppo" / "core_algos.py"
    lines = file.read_text().splitlines()
    start = next(n for n, line in enumerate(lines) if line.startswith(f"def {name}("))
    return "\n".join(inspect.getblock([f"{line}\n" for line in lines[start:]]))


def copy_with(folder: Path, *functions: str) -> Path:
    path = folder / CORE
    path.parent.mkdir(parents=True)
    path.write_text("\n".join(functions))
    (folder / "verl" / "trainer" / "config").mkdir()
    (folder / "verl" / "trainer" / "config" / "ppo_trainer.yaml").write_text(YAML)
    return folder


def named(folder: Path) -> list[str]:
    return [own.name for own in own_functions(folder)]


def test_functions_of_verl_are_known(tmp_path: Path) -> None:
    names = ("agg_loss", "kl_penalty", "compute_grpo_outcome_advantage")
    assert named(copy_with(tmp_path, *map(of_verl, names))) == []


def test_a_changed_function_is_named_and_a_new_one_is_not(tmp_path: Path) -> None:
    changed = of_verl("agg_loss").replace("return loss", "return 2 * loss")
    assert named(copy_with(tmp_path, changed, "def mine(x):\n    return x\n")) == ["agg_loss"]


@as_subtests(
    ("body", "is_same"),
    [
        ("x = 2 * y\nreturn x", True),
        ('"""Says more."""\nx = 2 * y\nreturn x', True),
        ("x: int = 2 * y\nreturn x", True),
        ("print(y)\nlogger.info('a')\nx = 2 * y\nreturn x", True),
        ("metrics['mean'] = y.mean()\nx = 2 * y\nmy_metrics.update(a=1)\nreturn x", True),
        ("with _timer('a', timing_raw):\n    x = 2 * y\nreturn x", True),
        ("if y:\n    print(y)\nx = 2 * y\nreturn x", True),
        ("assert y\nself._save_checkpoint()\nx = 2 * y\nreturn x", True),
        ("self._change(y)\nx = 2 * y\nreturn x", False),
        ("x = 3 * y\nreturn x", False),
        ("x = 2 * y\nx = x.clamp(1)\nreturn x", False),
        ("if y:\n    x = 2 * y\nreturn x", False),
        ("with no_grad():\n    x = 2 * y\nreturn x", False),
        ("log_probs = y\nx = 2 * log_probs\nreturn x", False),
        ("z = len(y)\nn = z + 1\nx = 2 * y\nreturn x", True),
        ("kept = []\nfor z in y:\n    kept.append(z)\nx = 2 * y\nreturn x", True),
        ("n = config.trainer.get('n', 3)\nx = 2 * y\nreturn x", True),
        ("from a import Log\nimport b.c\nprogress_bar = Log(b.d)\nx = 2 * y\nreturn x", True),
        ("import b\nx = 2 * b.twice(y)\nreturn x", False),
        ("z = self.worker.update(y)\nx = 2 * y\nreturn x", False),
    ],
)
def test_metrics_messages_and_types_do_not_count(body: str, is_same: bool) -> None:
    def identity(text: str) -> str:
        inside = "".join(f"    {line}\n" for line in text.splitlines())
        return functions_of(f"def f(y: object) -> int:\n{inside}")["f"]

    assert (identity(body) == identity("x = 2 * y\nreturn x")) is is_same
    assert identity("if y:\n    raise ValueError('a')") == identity("if y:\n    raise KeyError")


@pytest.mark.parametrize(
    ("name", "keys", "acts"),
    [
        ("compute_grpo_outcome_advantage", "algorithm.adv_estimator=grpo", True),
        ("compute_grpo_outcome_advantage", "algorithm.adv_estimator=rloo", False),
        ("compute_policy_loss_gspo", "", False),
        ("compute_policy_loss_gspo", "actor_rollout_ref.actor.policy_loss.loss_mode=gspo", True),
        ("compute_value_loss", "", True),
        ("compute_value_loss", "algorithm.adv_estimator=grpo", False),
    ],
)
def test_functions_of_the_scripts_algorithm_are_named(
    tmp_path: Path, name: str, keys: str, acts: bool
) -> None:
    folder = copy_with(tmp_path, f"def {name}(a):\n    return a + 1\n")
    script = folder / "run.sh"
    script.write_text(f"python3 -m verl.trainer.main_ppo data.train_batch_size=8 {keys}")
    report = "\n".join(convert(read_sources([str(script)])).report)
    assert (TITLE in report and f"`{name}` ({CORE}:1): here it is" in report) is acts


def test_a_file_that_cannot_be_parsed_has_no_functions() -> None:
    assert functions_of("def broken(:") == {}
