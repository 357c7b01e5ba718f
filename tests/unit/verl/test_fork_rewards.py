"""A reward manager of a copy of veRL scores here as it does alone."""

import json
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.support.what_is_trained import tokenizer
from tests.unit.verl.builders import missing, value
from tests.unit.verl.copies import NEW, OLD, OLD_MAIN, WORDS, write_copy
from trinity.errors import UserError
from trinity.rewards.verl_manager import refuse_changes
from trinity.verl.convert import Converted, convert
from trinity.verl.fork_rewards import find_reward, is_verls
from trinity.verl.settings import read_sources

REWARD = "buffer.explorer_input.default_reward_fn_type"
MANAGER = "reward_model.reward_manager"
CALL = """
import importlib.util, json, sys
spec = importlib.util.spec_from_file_location("verl_parts", sys.argv[1])
module = importlib.util.module_from_spec(spec)
spec.loader.exec_module(module)
assert not {"verl", "ray", "vllm"} & sys.modules.keys(), "the part imports at its own import"
reward = module.Reward()
for answer in json.loads(sys.argv[2]):
    print(json.dumps(reward(
        response=answer, response_token=[], finish_reason="stop",
        messages=[{"role": "user", "content": "a b"}, {"role": "assistant", "content": answer}],
        task={"data_source": "words", "reward_model": {"ground_truth": "a"}},
    )))
assert sys.modules["verl"].__file__.startswith(module.Reward.folder)
"""


OWN = "def weight():\n    return 70\n"
SPAWNED = """
import multiprocessing
from verl.utils.own import weight
def spawned(solution_str, ground_truth):
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return float(pool.apply(weight))
"""


@pytest.fixture
def model(tmp_path: Path) -> str:
    """The directory of a tokenizer."""
    tokenizer().save_pretrained(tmp_path / "model")
    return str(tmp_path / "model")


def of_script(folder: Path, *keys: str, program: str = "verl.trainer.main_ppo") -> Converted:
    path = folder / "run.sh"
    path.write_text(f"python3 -m {program} data.train_batch_size=8 {' '.join(keys)}")
    return convert(read_sources([str(path)]))


def scored(found: Converted, folder: Path, answers: list[str]) -> list[dict[str, float]]:
    """Scores of answers by the written part, in a process with that part alone."""
    part = folder / "verl_parts.py"
    part.write_text(found.parts["verl_parts.py"])
    command = [sys.executable, "-c", CALL, str(part), json.dumps(answers)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]


def test_an_older_manager_scores_prompt_and_answer(tmp_path: Path, model: str) -> None:
    copy = write_copy(tmp_path / "copy", OLD)
    found = of_script(copy, f"actor_rollout_ref.model.path={model}")
    assert value(found, REWARD) == "verl_parts.Reward"
    prompt = tokenizer().apply_chat_template(
        [{"role": "user", "content": "a b"}], tokenize=False, add_generation_prompt=True
    )
    own: dict[str, str | object] = {}
    exec(WORDS, own)
    alone = own["compute_score"]
    assert callable(alone)
    answers = ["a a", "b"]
    expected = [alone(f"{prompt}{answer}", "a") for answer in answers]
    assert [each["score"] for each in scored(found, tmp_path, answers)] == expected
    assert expected[0] - expected[1] == 2


def test_a_registered_manager_gets_the_arguments_of_its_trainer(tmp_path: Path, model: str) -> None:
    copy = write_copy(tmp_path / "copy", NEW)
    keys = (
        f"{MANAGER}=short",
        "trainer.bonus_scale=3",
        "+reward_model.reward_kwargs.offset=0.5",
        f"actor_rollout_ref.model.path={model}",
    )
    found = of_script(copy, *keys)
    assert missing(found) == []
    assert scored(found, tmp_path, ["a b a"]) == [{"score": 6.5, "acc": 2.0}]


def test_the_manager_of_the_program_that_a_script_starts_is_taken(
    tmp_path: Path, model: str
) -> None:
    """Its reward stands beside the folder with veRL, and asks a process that it spawns."""
    (tmp_path / ".git").mkdir()
    scoring = "from pack.scores import spawned\n"
    program = OLD_MAIN.replace("import ray\n", f"import ray\n{scoring}").replace(
        "words.compute_score", "spawned"
    )
    copy = write_copy(
        tmp_path / "copy", {**OLD, "trainer/main_ppo_other.py": program, "utils/own.py": OWN}
    )
    (tmp_path / "pack").mkdir()
    (tmp_path / "pack" / "scores.py").write_text(SPAWNED)
    keys = f"actor_rollout_ref.model.path={model}"
    found = of_script(copy, keys, program="verl.trainer.main_ppo_other")
    assert "../pack/scores.py" in found.parts["verl_parts.py"]
    assert [each["score"] for each in scored(found, tmp_path, ["a a"])] == [70.0]
    found = of_script(copy, keys)
    assert [each["score"] for each in scored(found, tmp_path, ["a a"])] == [5.0]


def test_a_key_that_other_code_reads_too_is_named(tmp_path: Path) -> None:
    more = {"trainer/ppo/reward.py": NEW["trainer/ppo/reward.py"] + "config.trainer.other_key\n"}
    copy = write_copy(tmp_path, {**NEW, **more})
    found = of_script(copy, f"{MANAGER}=short", "trainer.bonus_scale=3", "trainer.other_key=1")
    (named,) = missing(found)
    assert "trainer.other_key=1" in named


def test_a_part_stops_where_a_file_has_changed(tmp_path: Path) -> None:
    copy = write_copy(tmp_path / "copy", NEW)
    found = find_reward(copy, "short", "verl.trainer.main_ppo")
    assert found is not None
    refuse_changes(copy, dict(found.files))
    (copy / "verl" / "utils" / "reward_score" / "words.py").write_text("changed = True")
    with pytest.raises(UserError, match=r"words\.py has changed since the job was converted"):
        refuse_changes(copy, dict(found.files))
    (copy / "verl" / "utils" / "reward_score" / "words.py").unlink()
    with pytest.raises(UserError, match=r"words\.py is missing since"):
        refuse_changes(copy, dict(found.files))


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ("scores = compare(data)", "gives the whole batch to `compare`"),
        ("groups = data.non_tensor_batch['uid']", "reads `uid`"),
    ],
)
def test_a_manager_that_compares_answers_is_named(
    tmp_path: Path, changed: str, reason: str
) -> None:
    manager = NEW["workers/reward_manager/short.py"]
    with_comparison = manager.replace("        rewards =", f"        {changed}\n        rewards =")
    name = "workers/reward_manager/short.py"
    copy = write_copy(tmp_path, {**NEW, name: with_comparison})
    found = of_script(copy, f"{MANAGER}=short")
    assert reason in "\n".join(missing(found))
    assert found.parts == {}


@pytest.mark.parametrize(
    ("files", "keys"),
    [
        (NEW, (f"{MANAGER}=unheard",)),
        (NEW, (f"{MANAGER}=short", "reward_model.enable=True")),
        (NEW, (f"{MANAGER}=short", "custom_reward_function.path=mine.py")),
        ({}, ()),
    ],
)
def test_other_rewards_are_converted_as_without_a_copy(
    tmp_path: Path, files: Mapping[str, str], keys: tuple[str, ...]
) -> None:
    found = of_script(write_copy(tmp_path, files), *keys)
    assert found.parts == {}


def test_files_of_verl_are_known_by_their_content(tmp_path: Path) -> None:
    """A file with other content is no version; an empty one is everywhere the same."""
    mine = tmp_path / "mine.py"
    mine.write_text("x = 1\n")
    assert not is_verls(mine)
    (tmp_path / "empty.py").write_text("\n")
    assert is_verls(tmp_path / "empty.py")


def test_installed_files_of_verl_are_known() -> None:
    verl = pytest.importorskip("importlib.util").find_spec("verl")
    assert verl is not None and verl.submodule_search_locations
    folder = Path(verl.submodule_search_locations[0])
    names = ("utils/reward_score/gsm8k.py", "trainer/ppo/core_algos.py", "protocol.py")
    assert [is_verls(folder / name) for name in names] == [True, True, True]
