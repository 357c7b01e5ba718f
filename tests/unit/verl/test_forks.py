"""Scripts beside a copy of veRL: its code is read, and nothing of it is imported."""

from pathlib import Path

import pytest

from tests.unit.verl.builders import missing
from trinity.errors import UserError
from trinity.verl.checkout import checkout_at
from trinity.verl.convert import Converted, convert
from trinity.verl.settings import read_sources, read_starts
from trinity.verl.work import ConversionOptions

TRAINER = """
raise SystemExit("a fork is read, not run")
class Trainer:
    def fit(self):
        if self.config.length_bonus.enable:
            self.bonus = self.config.length_bonus["scale"]
        self.width = self.config.algorithm.get("beam_width", 1)
        # self.config.trainer.run_tag is in a comment
        Engine(**self.config.actor_rollout_ref.rollout.vendor_kwargs)
"""
ROLLOUT = "actor_rollout_ref.rollout"


@pytest.fixture
def fork(tmp_path: Path) -> Path:
    """A repository with veRL in a folder, and a program of the project beside it."""
    folder = tmp_path / "project" / "src"
    trainer = folder / "verl" / "trainer"
    (trainer / "config").mkdir(parents=True)
    (trainer / "config" / "ppo_trainer.yaml").write_text("algorithm: {adv_estimator: gae}\n")
    (trainer / "ray_trainer.py").write_text(TRAINER)
    (tmp_path / "project" / ".git").mkdir()
    (tmp_path / "project" / "tests").mkdir()
    (tmp_path / "project" / "tests" / "test_it.py").write_text("config.trainer.run_tag")
    return folder


def of_script(fork: Path, *keys: str, verl: Path | None = None) -> Converted:
    path = fork / "scripts" / "run.sh"
    path.parent.mkdir(exist_ok=True)
    path.write_text(f"python3 -m verl.trainer.main_ppo data.train_batch_size=8 {' '.join(keys)}")
    checkout = None if verl is None else checkout_at(verl)
    return convert(read_sources([str(path)]), ConversionOptions(checkout=checkout))


def reasons(found: Converted) -> str:
    return "\n".join(missing(found))


def test_a_key_that_no_code_reads_is_not_needed(fork: Path) -> None:
    found = of_script(fork, "trainer.run_tag=a", f"{ROLLOUT}.async_pool=3")
    assert missing(found) == []
    assert "reads it" in "\n".join(found.report)


def test_a_key_that_the_code_reads_is_named_with_its_line(fork: Path) -> None:
    found = of_script(fork, "+algorithm.beam_width=4")
    assert "src/verl/trainer/ray_trainer.py:7 reads it" in reasons(found)


def test_without_a_copy_every_unknown_key_is_named(tmp_path: Path) -> None:
    assert "trainer.run_tag" in reasons(of_script(tmp_path, "trainer.run_tag=a"))


def test_keys_of_a_section_that_is_passed_on_whole_count_as_read(fork: Path) -> None:
    found = of_script(fork, f"+{ROLLOUT}.vendor_kwargs.speed=2")
    assert "ray_trainer.py:9 reads it" in reasons(found)


@pytest.mark.parametrize("enable", ["False", "True"])
def test_keys_behind_a_switch_act_where_it_is_on(fork: Path, enable: str) -> None:
    found = of_script(fork, f"length_bonus.enable={enable}", "length_bonus.scale=0.5")
    assert [line.split("=")[0].strip("- ") for line in missing(found) if "=" in line] == (
        [] if enable == "False" else ["length_bonus.enable", "length_bonus.scale"]
    )


def test_a_switch_that_no_code_asks_switches_nothing(fork: Path) -> None:
    code = "config.bonus.enable\nconfig.bonus.amount"
    (fork / "verl" / "trainer" / "ray_trainer.py").write_text(code)
    found = of_script(fork, "bonus.enable=False", "bonus.amount=0.5")
    assert "bonus.amount" in reasons(found)


def test_code_of_another_python_counts_by_its_words(fork: Path) -> None:
    (fork / "verl" / "trainer" / "ray_trainer.py").write_text("print 'x'\nconfig.a.old_key\n")
    assert "ray_trainer.py:2 reads it" in reasons(of_script(fork, "algorithm.old_key=1"))


@pytest.mark.parametrize("inner", ["", "verl", ".."])
def test_the_copy_is_given_by_its_folder_its_package_or_its_repository(
    fork: Path, tmp_path: Path, inner: str
) -> None:
    elsewhere = tmp_path / "mine"
    elsewhere.mkdir()
    found = of_script(elsewhere, "trainer.run_tag=a", verl=fork / inner)
    assert missing(found) == []


def test_a_folder_that_holds_no_copy_or_several_is_refused(fork: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"holds no veRL: give the folder that has"):
        checkout_at(tmp_path / "nowhere")
    (fork.parent / "other" / "verl" / "trainer" / "config").mkdir(parents=True)
    with pytest.raises(UserError, match=r"holds several veRLs: choose one of .*other, .*src"):
        checkout_at(fork.parent)


def test_a_configuration_of_the_copy_that_is_no_yaml_is_named(fork: Path) -> None:
    (fork / "verl" / "trainer" / "config" / "ppo_trainer.yaml").write_text("a: 1\nb: [1\n")
    with pytest.raises(UserError, match=r"config/ppo_trainer\.yaml:\d is not valid YAML"):
        of_script(fork, "trainer.run_tag=a")


def test_a_number_that_waits_for_a_variable_is_named_and_the_rest_converted(
    tmp_path: Path,
) -> None:
    key = "actor_rollout_ref.rollout.tensor_model_parallel_size"
    batch = "data.train_batch_size=$((8 * NODES))"
    found = of_script(tmp_path, f"{key}=$TP_SIZE", batch, "data.max_prompt_length=64")
    assert f"{key}=${{oc.env:TP_SIZE}}" in reasons(found)
    assert "give --env TP_SIZE=<number>" in reasons(found)
    assert "give data.train_batch_size=<number>: until then" in reasons(found)
    assert "max_prompt_tokens: 64" in found.yaml


def test_each_start_of_a_script_is_read(tmp_path: Path) -> None:
    start = "python3 -m verl.trainer.main_ppo data.train_batch_size="
    path = tmp_path / "run.sh"
    again = f"for again in 1 2; do {start}8; done"
    path.write_text(f"{again}\nfor n in 16 32; do\n{start}$n\ndone\n")
    sizes = [settings.peek("data.train_batch_size") for settings in read_starts([str(path)])]
    assert sizes == [8, 16, 32]
    of_loop = read_starts([str(path), "data.seed=1"], line=3)
    assert [settings.peek("data.train_batch_size") for settings in of_loop] == [16, 32]
    assert read_sources([str(path)], line=3).peek("data.train_batch_size") == 16
    with pytest.raises(UserError, match=r"3 times \(lines 1, 3\): choose one with --line, or give"):
        read_sources([str(path)])
