"""The config generator: entries, the YAML, errors at their fields, the start of a run."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, MutableMapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest
import yaml

from tests.unit.subtests import as_subtests
from trinity.config.check import check_file
from trinity.config.loading.yaml import yaml_text
from trinity.config.sizing.memory import GIB
from trinity.errors import UserError
from trinity.run.launch.resume import store_plan
from trinity.run.launch.start import start_run
from trinity.studio.generator.document import (
    check_tree,
    document_from_verl,
    make_tree,
    read_document,
    values_of,
)
from trinity.studio.generator.fields import (
    BEGINNER,
    FieldKind,
    FieldSpec,
    field_specs,
    from_widget,
    to_widget,
)
from trinity.studio.generator.registry import ConfigEntry, ConfigGenerators
from trinity.studio.generator.sizes import MemoryBar, gpu_grid, memory_bars, memory_chart
from trinity.studio.generator.sources import (
    document_of_plan,
    document_of_run,
    example_files,
)
from trinity.studio.generator.start import file_name, save

ROOT = Path(__file__).parents[3]


class Drawn:
    """Stands for Streamlit: notes what is drawn in which column."""

    def __init__(self) -> None:
        self.session_state: MutableMapping[str, object] = {}
        self.columns_drawn: list[int | tuple[float, ...]] = []

    def columns(self, spec: Sequence[float] | int) -> Sequence[object]:
        self.columns_drawn.append(spec if isinstance(spec, int) else tuple(spec))
        return [_column() for _ in range(spec if isinstance(spec, int) else len(spec))]


@contextmanager
def _column() -> Iterator[None]:
    yield


def entry(name: str, path: str = "", section: str = "") -> ConfigEntry:
    return ConfigEntry(name=name, draw=lambda **_: None, path=path, section=section)


def test_the_guides_example_works_as_it_is_written() -> None:
    """With Streamlit's own session and widgets in place of notes, this is the guide's text."""
    generators, st, said = ConfigGenerators(), Drawn(), list[str]()
    state = st.session_state
    generators.add(entry("train_batch_size", "buffer.train_batch_size", "Buffer"))

    @generators.register_config(
        default_value=96,
        visible=lambda: state["trainer_gpu_num"] > 0,  # type: ignore[operator]
        other_configs={"_train_batch_size_per_gpu": 16},
    )
    def set_train_batch_size(**kwargs: object) -> None:
        key = kwargs["key"]
        assert key == "train_batch_size"
        state[str(key)] = state["_train_batch_size_per_gpu"] * state["trainer_gpu_num"]  # type: ignore[operator]
        said.append("drawn")

    @generators.register_check()
    def check_train_batch_size(unfinished_fields: set[str], key: str) -> None:
        if state[key] % state["trainer_gpu_num"] != 1:  # type: ignore[operator]
            unfinished_fields.add(key)
            said.append("warned")

    state.update(generators.default_config | {"trainer_gpu_num": 6})
    assert state["_train_batch_size_per_gpu"] == 16
    unfinished = set[str]()
    generators.set_unfinished_fields(unfinished)
    generators.get_configs("train_batch_size", drawing=st)
    assert (said, unfinished) == (["drawn", "warned"], {"train_batch_size"})
    assert state["train_batch_size"] == 96
    assert generators.entries["train_batch_size"].path == "buffer.train_batch_size"
    state["trainer_gpu_num"] = 0
    generators.get_configs("train_batch_size", drawing=st)
    assert said == ["drawn", "warned"]
    assert generators.get("train_batch_size") is None
    assert generators.get_check_func("train_batch_size") is None


def test_a_page_of_another_browser_finishes_no_field() -> None:
    """Pages are made in threads of their own, several at once."""
    entries = ConfigGenerators()
    entries.set_unfinished_fields({"lr"})
    with ThreadPoolExecutor(1) as other:
        other.submit(entries.set_unfinished_fields, set()).result()
        assert other.submit(lambda: entries.unfinished_fields).result() == set()
    assert entries.unfinished_fields == {"lr"}


def test_an_entry_that_exists_is_replaced_and_keeps_its_place() -> None:
    generators = ConfigGenerators()
    generators.add(entry("seed", "seed", "Model"))
    generators.register_config(7)(named("set_seed"))
    found = generators.entries["seed"]
    assert (found.default, found.path, found.section) == (7, "seed", "Model")


def test_a_plugin_adds_an_entry_its_section_and_its_path() -> None:
    generators = ConfigGenerators()
    generators.register_config(0.5, section="Our lab", path="algorithm.policy_loss_fn_args.tau")(
        named("set_tau")
    )
    assert generators.names_of("Our lab") == ["tau"]
    written = make_tree({}, {"tau": 0.7}, generators.entries)
    assert written == {"algorithm": {"policy_loss_fn_args": {"tau": 0.7}}}
    assert make_tree({}, {"tau": 0.5}, generators.entries) == {}


def test_functions_of_other_names_are_refused() -> None:
    generators = ConfigGenerators()
    for name in ("train_batch_size", "set_"):
        with pytest.raises(UserError, match="must be called `set_<name"):
            generators.register_config()(named(name))
    with pytest.raises(UserError, match="must be called `check_<name"):
        generators.register_check(named("set_seed"))
    with pytest.raises(UserError, match="there is no entry 'nothing'"):
        generators.get("nothing")


def named(name: str) -> Callable[..., object]:
    """A function of this name."""

    def function(**_: object) -> None:
        return None

    function.__name__ = name
    return function


def test_a_row_has_a_column_for_each_visible_entry() -> None:
    generators, drawing = ConfigGenerators(), Drawn()
    for name in ("a", "b"):
        generators.add(entry(name))
    generators.register_config(visible=lambda: False)(named("set_c"))
    generators.get_configs("a", "c", "b", drawing=drawing)
    generators.get_configs("a", "b", drawing=drawing, columns_spec=[1, 2])
    generators.get_configs("c", drawing=drawing)
    assert drawing.columns_drawn == [2, (1, 2)]


def test_every_key_that_acts_has_one_field_and_every_beginner_field_exists() -> None:
    specs = field_specs()
    paths = [spec.path for spec in specs.values()]
    assert len(set(paths)) == len(paths) > 200
    assert {"buffer.batch_size", "algorithm.optimizer.lr", "model.model_path"} <= set(paths)
    assert {name for names in BEGINNER.values() for name in names} <= specs.keys()
    assert all(spec.meaning for spec in specs.values())


@as_subtests("spec", field_specs().values())
def test_a_default_survives_its_widget_and_writes_nothing(spec: FieldSpec) -> None:
    entries = {spec.name: entry(spec.name, spec.path)}
    assert make_tree({}, {spec.name: spec.widget_default}, entries) == {}


def test_an_example_survives_the_form() -> None:
    for path in sorted((ROOT / "examples").glob("*/*.yaml")):
        tree = yaml.safe_load(path.read_text())
        entries = {name: entry(name, spec.path) for name, spec in field_specs().items()}
        if isinstance(tree, dict) and "${" not in path.read_text():
            assert make_tree(tree, values_of(tree), entries) == tree, path


def test_a_change_is_written_and_all_else_stays() -> None:
    base = {"buffer": {"batch_size": 4, "explorer_input": {"eval_tasksets": [{"name": "x"}]}}}
    entries = {name: entry(name, spec.path) for name, spec in field_specs().items()}
    values = values_of(base) | {"explore_batch_size": 8, "algorithm_type": "ppo"}
    made = make_tree(base, values, entries)
    assert made["buffer"] == {**base["buffer"], "batch_size": 8}
    assert made["algorithm"] == {"algorithm_type": "ppo"}
    assert base["buffer"]["batch_size"] == 4


def test_a_field_that_is_emptied_goes_away() -> None:
    entries = {"repeat_times": entry("repeat_times", "algorithm.repeat_times")}
    base = {"algorithm": {"repeat_times": 4, "algorithm_type": "grpo"}}
    assert make_tree(base, {"repeat_times": None}, entries) == {
        "algorithm": {"algorithm_type": "grpo"}
    }


def test_errors_stand_at_the_field_that_they_name() -> None:
    report = check_tree({"buffer": {"batch_size": 0}, "algorithm": {"algorithm_type": "grpoo"}})
    assert "batch_size" in report.errors["buffer.batch_size"][0]
    assert "grpoo" in report.errors["algorithm.algorithm_type"][0]
    assert report.plan == ()


def test_a_right_form_has_a_plan_and_its_yaml_is_checked_again() -> None:
    tree = {
        "model": {"model_path": "/models/small", "max_model_len": 2048},
        "buffer": {
            "batch_size": 4,
            "total_steps": 10,
            "explorer_input": {
                "taskset": {"name": "train", "path": "/data/train.jsonl"},
                "default_workflow_type": "math_workflow",
            },
        },
    }
    report = check_tree(tree)
    assert report.all_errors == ()
    assert report.plan[0].startswith("stage main: grpo, train steps: 10")
    assert read_document(report.yaml) == tree


@pytest.mark.parametrize("text", ["", "[]", "a: [", "a: b: c", "\x00", "&a [*a]", "3"])
def test_what_is_no_document_is_told_in_one_sentence(text: str) -> None:
    with pytest.raises(UserError, match=r"^the document is not") as caught:
        read_document(text)
    assert "\n" not in str(caught.value)


def test_a_value_in_the_way_of_a_section_is_told() -> None:
    with pytest.raises(UserError, match=r"`buffer\.batch_size` cannot be written"):
        make_tree({"buffer": 3}, {"b": 4}, {"b": entry("b", "buffer.batch_size")})


def test_mappings_are_written_in_one_line() -> None:
    spec = field_specs()["policy_loss_fn_args"]
    assert spec.kind is FieldKind.YAML
    assert from_widget(spec, to_widget(spec, {"tau": 0.5})) == {"tau": 0.5}
    with pytest.raises(ValueError, match="is not YAML: write it as"):
        from_widget(spec, "{a: [")


def test_a_script_of_verl_becomes_a_document() -> None:
    tree, remarks = document_from_verl(
        "python3 -m verl.trainer.main_ppo algorithm.adv_estimator=grpo "
        "data.train_files=/d/a.parquet actor_rollout_ref.model.path=/m "
        "actor_rollout_ref.actor.optim.lr=2e-6 trainer.no_such_setting=3"
    )
    assert tree["algorithm"]["optimizer"]["lr"] == 2e-6
    assert any("no_such_setting" in remark for remark in remarks)
    with pytest.raises(UserError):
        document_from_verl("echo nothing")


def test_a_file_is_not_overwritten_unless_that_is_said(tmp_path: Path) -> None:
    path = save("a: 1\n", tmp_path / "new" / "x.yaml", may_replace=False)
    with pytest.raises(UserError, match="exists: give another name"):
        save("a: 2\n", path, may_replace=False)
    save("a: 3\n", path, may_replace=True)
    assert path.read_text() == "a: 3\n"
    with pytest.raises(UserError, match=r"ends with \.yaml"):
        save("", tmp_path / ".bashrc", may_replace=True)
    assert file_name("a/../b", "c d") == "a_.._b-c_d.yaml"


STARTER = """
import sys, time
from pathlib import Path
from trinity.run.launch.start import start_run
sleeper = (sys.executable, "-c", "import time; print('begun', flush=True); time.sleep(60)")
print(start_run(Path(sys.argv[1]), sleeper).pid, flush=True)
time.sleep(60)
"""


def test_a_started_run_outlives_studio(tmp_path: Path) -> None:
    config = tmp_path / "run.yaml"
    with subprocess.Popen(
        [sys.executable, "-c", STARTER, str(config)],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        start_new_session=True,
    ) as studio:
        assert studio.stdout is not None
        run = psutil.Process(int(studio.stdout.readline()))
        deadline = time.monotonic() + 30
        while (tmp_path / "run.log").read_text() != "begun\n" and time.monotonic() < deadline:
            time.sleep(0.05)
        os.killpg(studio.pid, signal.SIGKILL)  # as a terminal that is closed does
    try:
        assert run.is_running()
        assert run.status() != psutil.STATUS_ZOMBIE
        assert (tmp_path / "run.log").read_text() == "begun\n"
    finally:
        run.kill()


def test_starting_says_where_the_log_cannot_be_written(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="cannot write"):
        start_run(tmp_path / "missing" / "x.yaml", ("true",))


def test_a_new_form_says_what_is_missing_and_not_where_it_was_written() -> None:
    report = check_tree({"project": "trinity", "name": "rft"})
    assert "buffer.explorer_input.taskset.path" in report.errors
    assert report.all_errors
    assert "form.yaml" not in " ".join((*report.other_errors, *sum(report.errors.values(), ())))


@pytest.mark.parametrize("path", example_files().values(), ids=example_files())
def test_the_document_of_a_plan_plans_the_same(path: Path, tmp_path: Path) -> None:
    """Also of several stages, whose shared keys stand above them."""
    plan = check_file(path).plan
    assert plan is not None
    again = tmp_path / path.name
    again.write_text(yaml_text(document_of_plan(plan)))
    assert check_file(again).plan == plan


def test_a_document_of_a_run_has_no_secrets_and_says_so(tmp_path: Path) -> None:
    path = tmp_path / "with_key.yaml"
    tree = yaml.safe_load((ROOT / "examples/gsm8k/gsm8k.yaml").read_text())
    tree["explorer"] |= {"rollout_model": {"api_key": "sk-secret"}}
    path.write_text(yaml_text(tree))
    report = check_file(path)
    assert report.plan is not None, report.errors
    plan = report.plan.model_copy(update={"job_dir": str(tmp_path / "run")})
    plan.job_path.mkdir()
    store_plan(plan)
    found, remarks = document_of_run(plan.job_path)
    assert "api_key" not in str(found) and found["buffer"]["batch_size"] == 96
    assert "sk-secret" not in str(found)
    assert any("give them again" in remark for remark in remarks)


def test_a_document_of_a_run_without_a_name_of_its_own_is_a_copy_too(tmp_path: Path) -> None:
    tree = yaml.safe_load((ROOT / "examples/gsm8k/gsm8k.yaml").read_text())
    del tree["name"]
    (tmp_path / "unnamed.yaml").write_text(yaml_text(tree))
    report = check_file(tmp_path / "unnamed.yaml")
    assert report.plan is not None, report.errors
    plan = report.plan.model_copy(update={"job_dir": str(tmp_path / "run")})
    plan.job_path.mkdir()
    store_plan(plan)
    found, _ = document_of_run(plan.job_path)
    assert found["name"] == "rft-copy"


def test_gpus_are_told_by_process_and_a_role_that_does_not_fit_has_a_remedy(
    tmp_path: Path,
) -> None:
    shape = {"model_type": "llama", "hidden_size": 4096, "intermediate_size": 14336}
    shape |= {"num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8}
    (tmp_path / "config.json").write_text(json.dumps({**shape, "vocab_size": 128256}))
    tree = yaml.safe_load((ROOT / "examples/gsm8k/gsm8k.yaml").read_text())
    tree["model"]["model_path"] = str(tmp_path)
    tree["cluster"] = {"gpu_per_node": 8}
    tree["explorer"] |= {"rollout_model": {"engine_num": 1, "tensor_parallel_size": 2}}
    [stage] = check_tree(tree).stages
    grid = gpu_grid(stage)
    assert grid is not None
    assert grid.rows[0][:3] == ("rollout engine 0", "rollout engine 0", "rank 0")
    assert grid.rows[0][-1] == "rank 5"
    engine, trainer = memory_bars(stage, 80 * GIB)
    assert (engine.role, trainer.role) == ("rollout engine", "trainer")
    assert trainer.used < sum(term.bytes for term in trainer.terms), "terms that never meet"
    small = [bar.remedy for bar in memory_bars(stage, 8 * GIB)]
    assert all(small), "8 billion parameters do not fit into 8 GiB"


def test_the_chart_of_memory_has_a_part_for_each_term() -> None:
    chart = memory_chart([MemoryBar(role="r", terms=(), used=0, limit=1)], GIB)
    assert chart["data"] == {"values": []}


def test_a_stage_on_processors_has_no_gpus() -> None:
    tree = yaml.safe_load((ROOT / "examples/addition/addition.yaml").read_text())
    assert [gpu_grid(stage) for stage in check_tree(tree).stages] == [None, None]
