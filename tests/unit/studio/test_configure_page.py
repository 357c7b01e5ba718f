"""The page Configure as Streamlit runs it, with the plug-in of the documentation."""

import json
import re
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest
import yaml
from streamlit.testing.v1 import AppTest

from tests.unit.studio.fake_run import problems, said
from trinity.api.v1 import synchronizer_pb2, synchronizer_pb2_grpc
from trinity.config.check import check_file
from trinity.config.plan.stage_plan import ExperimentPlan
from trinity.plugins import PLUGIN_DIRS_VARIABLE
from trinity.run.launch.resume import store_plan
from trinity.runtime.security.credentials import Credentials
from trinity.studio.connection import System
from trinity.studio.context import StudioContext, StudioOptions, set_context
from trinity.studio.generator.form import MODE_KEY, _register_entries
from trinity.studio.generator.registry import CONFIG_GENERATORS
from trinity.studio.pages.configure import EXPERT_MODE, GPU_KEY, SECTION_KEY
from trinity.studio.visitors import Visitor

SCRIPT = "from trinity.studio.pages import configure\nconfigure.show()\n"
DOCUMENT = Path(__file__).parents[3] / "docs" / "studio.md"
SECONDS = 120
ROOT = Path(__file__).parents[3]
SMALL_MODEL = {
    "model_type": "qwen2",
    "hidden_size": 896,
    "intermediate_size": 4864,
    "num_hidden_layers": 24,
    "num_attention_heads": 14,
    "num_key_value_heads": 2,
    "vocab_size": 151936,
    "tie_word_embeddings": True,
    "max_position_embeddings": 32768,
}
EXPERIMENT = "6d1c7d0e-98a9-4dc5-93a3-0f2f5b5d0f11"


@pytest.fixture(autouse=True)
def context() -> Iterator[None]:
    """The owner's Studio, whose page this is."""
    made = StudioContext(StudioOptions(places=()))
    set_context(made)
    yield
    made.close()


@pytest.fixture(autouse=True)
def own_entries() -> Iterator[None]:
    """Entries of one test; a process registers them once."""
    before = dict(CONFIG_GENERATORS._entries), dict(CONFIG_GENERATORS._checks)
    _register_entries.cache_clear()
    yield
    CONFIG_GENERATORS._entries, CONFIG_GENERATORS._checks = before
    _register_entries.cache_clear()


def page() -> AppTest:
    found = AppTest.from_string(SCRIPT, default_timeout=SECONDS).run()
    assert not found.exception
    return found


def tree(shown: AppTest) -> dict[str, object]:
    """The YAML that the page shows."""
    loaded = yaml.safe_load(shown.code[0].value)
    assert isinstance(loaded, dict)
    return loaded


def texts(shown: AppTest) -> str:
    return "\n".join(said(shown))


def test_a_form_is_filled_and_becomes_a_right_file() -> None:
    shown = page()
    assert tree(shown) == {"project": "trinity", "name": "rft"}
    assert "model_path" in texts(shown)
    shown.text_input(key="model_path").set_value("/models/small")
    shown.text_input(key="taskset_path").set_value("/data/train.jsonl")
    shown.selectbox(key="default_workflow_type").set_value("math_workflow")
    shown.number_input(key="explore_batch_size").set_value(8)
    shown.number_input(key="total_steps").set_value(20)
    shown.number_input(key="actor_lr").set_value(2e-6)
    shown.number_input(key="max_model_len").set_value(2048)
    shown.run()
    assert not shown.exception
    assert tree(shown)["buffer"]["batch_size"] == 8  # type: ignore[index]
    assert tree(shown)["algorithm"] == {"optimizer": {"lr": 2e-6}}
    assert problems(shown) == []
    assert "train steps: 20" in texts(shown)
    shown.radio(key=MODE_KEY).set_value(EXPERT_MODE).run()
    assert not shown.exception
    assert tree(shown)["buffer"]["batch_size"] == 8  # type: ignore[index]


def test_a_field_that_is_empty_is_required_and_an_error_once_the_form_is_saved(
    tmp_path: Path,
) -> None:
    shown = page()
    assert problems(shown) == []
    assert "`model.model_path` is required: give" in texts(shown)
    shown.text_input(key="model_path").set_value("/models/small").run()
    assert problems(shown) == [], "the others are still to be filled"
    file = str(tmp_path / "empty.yaml")
    next(field for field in shown.text_input if field.label == "Save as").set_value(file)
    assert "`model.max_model_len` is missing: give" in "".join(problems(press(shown, "Save")))
    assert problems(press(choose(page(), "Example", "gsm8k"), "Use this example")) == []


def test_a_wrong_value_is_an_error_at_once() -> None:
    """The control."""
    shown = page()
    shown.text_input(key="model_path").set_value("/models/small")
    shown.text_input(key="exp_name").set_value("a/b").run()
    assert "`name` in this form:2 must be letters" in "".join(problems(shown))


def press(shown: AppTest, label: str) -> AppTest:
    next(button for button in shown.button if button.label == label).click().run()
    assert not shown.exception
    return shown


def choose(shown: AppTest, label: str, value: object) -> AppTest:
    next(box for box in shown.selectbox if box.label == label).set_value(value).run()
    assert not shown.exception
    return shown


def test_a_form_starts_from_an_example() -> None:
    shown = press(choose(page(), "Example", "gsm8k"), "Use this example")
    written = yaml.safe_load((ROOT / "examples/gsm8k/gsm8k.yaml").read_text())
    assert tree(shown) == written, "also its variables, which no number field can show"
    assert shown.text_input(key="exp_name").value == "gsm8k"
    shown.number_input(key="gpu_per_node").set_value(4).run()
    assert tree(shown)["cluster"] == {**written["cluster"], "gpu_per_node": 4}
    assert "root of the repository" in texts(shown)


def test_a_form_starts_from_a_run_under_a_name_of_its_own(tmp_path: Path) -> None:
    plan = check_file(ROOT / "examples/gsm8k/gsm8k.yaml").plan
    assert plan is not None
    plan = plan.model_copy(update={"job_dir": str(tmp_path / "examples" / "gsm8k")})
    plan.job_path.mkdir(parents=True)
    store_plan(plan)
    made = StudioContext(StudioOptions(places=(tmp_path,)))
    set_context(made)
    try:
        shown = press(choose(page(), "Run", 0), "Use this run")
    finally:
        made.close()
    assert tree(shown)["name"] == "gsm8k-copy"
    assert "go on with the old one" in texts(shown)


def test_a_run_that_cannot_be_read_leaves_the_form_usable(tmp_path: Path) -> None:
    (tmp_path / "old" / "run").mkdir(parents=True)
    (tmp_path / "old" / "run" / "config.json").write_text('{"schema": 1}')
    made = StudioContext(StudioOptions(places=(tmp_path,)))
    set_context(made)
    try:
        shown = press(choose(page(), "Run", 0), "Use this run")
    finally:
        made.close()
    assert "is not a plan of this release" in texts(shown)
    assert tree(shown) == {"project": "trinity", "name": "rft"}


def test_a_form_is_gone_on_with_after_the_page_is_loaded_again() -> None:
    before = page()
    before.text_input(key="model_path").set_value("/models/small").run()
    written = tree(before)
    assert "model" in written
    again = page()
    assert tree(again) == {"project": "trinity", "name": "rft"}
    assert tree(press(again, "Go on with that form")) == written
    assert "Go on with that form" not in [button.label for button in again.button]


def test_a_form_that_is_left_is_not_offered_again_in_this_tab() -> None:
    page().text_input(key="exp_name").set_value("first").run()
    again = press(page(), "Begin with a new one")
    assert "Go on with that form" not in [button.label for button in again.button]
    assert tree(again) == {"project": "trinity", "name": "rft"}


def test_an_untouched_form_is_not_offered() -> None:
    """The control."""
    page()
    assert "Go on with that form" not in [button.label for button in page().button]


def test_gpus_and_memory_are_shown_once_there_are_gpus(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(SMALL_MODEL))
    shown = page()
    shown.text_input(key="model_path").set_value(str(tmp_path))
    shown.text_input(key="taskset_path").set_value("/data/train.jsonl")
    shown.selectbox(key="default_workflow_type").set_value("math_workflow")
    shown.number_input(key="max_model_len").set_value(2048)
    shown.number_input(key="explore_batch_size").set_value(8)
    shown.number_input(key="total_steps").set_value(20).run()
    assert "GPUs of stage" not in texts(shown)
    shown.number_input(key="gpu_per_node").set_value(4).run()
    assert not shown.exception
    assert "GPUs of stage main" in texts(shown)
    assert re.search(r"rollout engine: .* of 72.0 GiB: fits", texts(shown))
    assert re.search(r"trainer: .* of 64.0 GiB: fits", texts(shown))
    shown.number_input(key=GPU_KEY).set_value(1).run()
    assert "does not fit: " in texts(shown)
    (tmp_path / "config.json").write_text("{")
    shown.run()
    assert not shown.exception
    assert "config.json is no JSON" in texts(shown)


def test_every_section_of_the_expert_mode_can_be_shown() -> None:
    shown = page()
    shown.radio(key=MODE_KEY).set_value(EXPERT_MODE).run()
    for section in ("Buffer", "Explorer and Synchronizer", "Trainer", "Model"):
        shown.selectbox(key=SECTION_KEY).set_value(section).run()
        assert not shown.exception, section
        assert tree(shown) == {"project": "trinity", "name": "rft"}


def test_the_plugin_of_the_documentation_works(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """That is the guide's example, as it is written there, and an entry of a new section."""
    source = re.search(r"```python\n(.*?)```", DOCUMENT.read_text(), re.DOTALL)
    assert source is not None
    (tmp_path / "lab.py").write_text(source[1])
    monkeypatch.setenv(PLUGIN_DIRS_VARIABLE, str(tmp_path))
    shown = page()
    shown.number_input(key="gpu_per_node").set_value(8).run()
    assert not shown.exception
    assert shown.session_state["trainer_gpu_num"] == 7
    assert tree(shown)["buffer"] == {"train_batch_size": 112}
    shown.number_input(key="train_batch_size").set_value(70).run()
    assert not shown.exception
    assert shown.session_state["_train_batch_size_per_gpu"] == 10
    shown.radio(key=MODE_KEY).set_value(EXPERT_MODE).run()
    shown.selectbox(key=SECTION_KEY).set_value("Our lab").run()
    shown.number_input(key="tau").set_value(0.5).run()
    assert tree(shown)["algorithm"] == {"policy_loss_fn_args": {"tau": 0.5}}


def test_a_plugin_that_cannot_be_read_is_told_on_the_page(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "broken.py").write_text("raise ValueError('no')\n")
    monkeypatch.setenv(PLUGIN_DIRS_VARIABLE, str(tmp_path))
    shown = page()
    [problem] = problems(shown)
    assert "broken.py" in problem


def test_a_visitor_with_a_token_gets_one_sentence_and_no_form() -> None:
    """The page starts programs and reads files on Studio's machine."""
    visitor = Visitor(name="guest", is_owner=False, token="signed")
    made = StudioContext(StudioOptions(places=()), visitor_now=lambda: visitor)
    set_context(made)
    try:
        shown = page()
    finally:
        made.close()
    assert "a token does not open it" in texts(shown)
    assert not shown.text_input and not shown.button and not shown.selectbox


class Synchronizer(synchronizer_pb2_grpc.SynchronizerServiceServicer):
    """Knows no experiment, and takes every one but those of a label that it refuses."""

    def __init__(self, refused: str = "") -> None:
        self.taken: list[synchronizer_pb2.CreateExperimentRequest] = []
        self.refused = refused

    async def GetStatus(self, *_: object) -> synchronizer_pb2.GetStatusResponse:
        return synchronizer_pb2.GetStatusResponse()

    async def CreateExperiment(
        self, request: synchronizer_pb2.CreateExperimentRequest, context: grpc.aio.ServicerContext
    ) -> synchronizer_pb2.CreateExperimentResponse:
        if self.refused:
            await context.abort(grpc.StatusCode.PERMISSION_DENIED, self.refused)
        self.taken.append(request)
        made = synchronizer_pb2.Experiment(id=EXPERIMENT, label=request.label)
        return synchronizer_pb2.CreateExperimentResponse(experiment=made)


def submitted(synchronizer: Synchronizer, folder: Path) -> AppTest:
    """The page after a configuration was filled in and submitted to services by address."""
    context = StudioContext(StudioOptions(places=()))

    async def serve() -> tuple[grpc.aio.Server, int]:
        server = grpc.aio.server()
        synchronizer_pb2_grpc.add_SynchronizerServiceServicer_to_server(synchronizer, server)
        port = server.add_insecure_port("127.0.0.1:0")
        await server.start()
        return server, port

    server, port = context.wait_for(serve())
    address = f"127.0.0.1:{port}"
    system = System(buffer=address, synchronizer=address, security=Credentials())
    context.options = StudioOptions(places=(), system=system)
    set_context(context)
    try:
        shown = page()
        shown.text_input(key="model_path").set_value("/models/small")
        shown.text_input(key="taskset_path").set_value("/data/train.jsonl")
        shown.text_input(key="checkpoint_root_dir").set_value("/data/checkpoints")
        shown.selectbox(key="default_workflow_type").set_value("math_workflow")
        shown.number_input(key="max_model_len").set_value(2048)
        shown.number_input(key="total_steps").set_value(20).run()
        next(field for field in shown.text_input if field.label == "Save as").set_value(
            str(folder / "submitted.yaml")
        )
        next(button for button in shown.button if button.label == "Save and submit").click().run()
        context.wait_for(server.stop(None))
    finally:
        context.close()
    assert not shown.exception
    return shown


def test_a_run_is_submitted_to_the_services_by_address(tmp_path: Path) -> None:
    services = Synchronizer()
    shown = submitted(services, tmp_path)
    [request] = services.taken
    assert (request.label, request.tenant, request.keep_running) == ("trinity/rft", "default", True)
    plan = ExperimentPlan.model_validate_json(request.plan_json)
    assert plan.stages[0].total_train_steps == 20
    assert (tmp_path / "submitted.yaml").is_file()
    assert f"trinity/rft started as {EXPERIMENT}" in texts(shown)
    assert "The services run it now." in texts(shown)


def test_services_that_refuse_say_why_on_the_page(tmp_path: Path) -> None:
    shown = submitted(Synchronizer(refused="the token lacks the scope submit"), tmp_path)
    assert "the token lacks the scope submit" in texts(shown)
    assert "The services run it now." not in texts(shown)


def test_without_services_there_is_nothing_to_submit_to() -> None:
    """The control."""
    assert "Save and submit" not in [button.label for button in page().button]
