"""What a person is shown of samples and steps."""

import io
import json
import unicodedata

import pytest
from rich.console import Console, RenderableType

from tests.unit.inspect.builders import ID, record, sequence
from trinity.api.v1 import buffer_pb2, query_pb2
from trinity.data.samples import sample_row
from trinity.inspect.tables import (
    population_lines,
    population_table,
    sample_details,
    sample_table,
    step_header,
    step_table,
)
from trinity.run.exports import schema
from trinity.studio.plain_text import reward_text


def shown(what: RenderableType) -> str:
    out = io.StringIO()
    Console(file=out, width=200, highlight=False).print(what)
    return out.getvalue()


def test_a_list_shows_what_became_of_each_sample() -> None:
    text = shown(sample_table([record(), record(trained=False)]))
    first, second = text.splitlines()[1:]
    assert first.split()[:7] == [ID[:8], "3/1/2", "sums:12", "batched", "0.75", "0.5", "4-5"]
    assert "step 7" in first
    assert "[bold]4[/bold]" in first, "a response is text, not markup"
    assert "(too old)" in second


def test_the_turns_of_a_run_stand_below_its_first() -> None:
    turns = [record(), record(), record()]
    for step, turn in enumerate(turns):
        turn.eid.step = step
    other = record()
    other.eid.run += 1
    first, second, third, fourth = shown(sample_table([*turns, other])).splitlines()[1:]
    assert first.split()[1:3] == ["3/1/2", "sums:12"]
    assert [line.split()[1:4] for line in (second, third)] == [
        ["turn", "1", "batched"],
        ["turn", "2", "batched"],
    ]
    assert fourth.split()[1:3] == ["3/1/3", "sums:12"]


def test_one_sample_is_shown_with_every_token() -> None:
    text = shown(sample_details(query_pb2.GetExperienceResponse(experience=record())))
    lines = [line.split() for line in text.splitlines()]
    assert ["0", "7", "yes", "-0.5000", "4", "of", "trainer", "1"] in lines
    assert ["1", "8", "no", "-", "5", "of", "trainer", "2"] in lines
    assert ["2", "9", "yes", "-1.2500", "5", "of", "trainer", "2"] in lines
    assert "2 tokens of the prompt: 5 6" in text
    assert "step 7, row 3, advantage 0.5, weight 1, used advantage 0.4, ratio 1.1" in text
    assert '"judge": "fine"' in text


STEERING = "\x1b]0;title\x07\x1b[2J\x9b31m\x7f\x08\r"


def test_nothing_that_is_shown_steers_the_terminal() -> None:
    one = record(body=sequence(f"a\n\tb{STEERING}"))
    side = one.content.sequence
    side.prompt_text, one.taskset = f"c{STEERING}", f"sums{STEERING}"
    one.content.info.update({"judge": STEERING})
    one.metrics[STEERING] = 1.0
    odd = record(trained=False)
    odd.reason = STEERING
    row = query_pb2.StepRow(row_json=json.dumps({"q": STEERING}, ensure_ascii=False))
    removed = record(with_content=False)
    removed.content_removed = STEERING
    population = query_pb2.GetPopulationResponse(
        left_out=[query_pb2.StateCount(reason=STEERING)],
        comparisons=[query_pb2.Comparison(name=STEERING)],
    )
    told = [
        sample_details(query_pb2.GetExperienceResponse(experience=one)),
        sample_details(query_pb2.GetExperienceResponse(experience=odd)),
        sample_details(query_pb2.GetExperienceResponse(experience=removed)),
        sample_table([one, odd, removed]),
        step_table([row, query_pb2.StepRow(experience=one, use=one.uses[0])]),
        "\n".join(population_lines("rft", population)),
        population_table(population),
    ]
    text = "".join(map(shown, told))
    assert not {c for c in text if unicodedata.category(c) == "Cc"} - {"\n", "\t"}
    lines = [line.rstrip() for line in text.splitlines()]
    assert any(line.startswith("        b\\x1b]0;title\\x07\\x1b[2J\\x9b31m") for line in lines)


def test_a_reward_that_an_operator_changed_stands_beside_the_one_that_came() -> None:
    one = record()
    assert "shaped reward" not in shown(
        sample_details(query_pb2.GetExperienceResponse(experience=one))
    )
    one.revision, one.shaped_reward = 1, 0.25
    lines = shown(sample_details(query_pb2.GetExperienceResponse(experience=one))).splitlines()
    assert ["shaped", "reward", "0.25"] in [line.split() for line in lines]
    assert "0.75 -> 0.25" in shown(sample_table([one]))
    assert "->" not in shown(sample_table([record()]))
    assert (sample_row(one)["reward"], sample_row(one)["shaped_reward"]) == (0.75, 0.25)
    assert sample_row(record())["shaped_reward"] is None
    assert "shaped_reward" in schema(pytest.importorskip("pyarrow")).names
    assert reward_text(0.75, 0.25) == "0.75 → 0.25"
    assert (reward_text(0.75, None), reward_text(None, None)) == ("0.75", "")


def test_a_deleted_sample_says_that_its_content_is_gone() -> None:
    answer = query_pb2.GetExperienceResponse(experience=record(with_content=False))
    assert "its content is deleted" in shown(sample_details(answer))


def test_a_sample_whose_content_was_removed_says_by_what() -> None:
    one = record(with_content=False)
    one.content_removed = "removed as older than all that is kept (`buffer.keep_steps: 5`)"
    answer = query_pb2.GetExperienceResponse(experience=one)
    assert f"its content is {one.content_removed}" in shown(sample_details(answer))
    assert "(content removed)" in shown(sample_table([one]))


def test_a_step_shows_its_rows_of_both_kinds() -> None:
    sample = record()
    rows = [
        query_pb2.StepRow(use=sample.uses[0], experience=sample),
        query_pb2.StepRow(
            use=query_pb2.BatchUse(position=4), row_json='{"question": "1+1="}', row_index=9
        ),
    ]
    text = shown(step_table(rows))
    assert text.splitlines()[1].split() == [
        *("3", ID[:8], "3/1/2", "sums:12", "0.75", "0.5", "4-5", "3", "stop", "0.4", "1.1")
    ]
    assert '{"question": "1+1="}' in text


def test_a_step_names_the_weights_before_and_after() -> None:
    head = query_pb2.StepHead(
        step=7,
        num_rows=2,
        trained=[buffer_pb2.StepTrained(incarnation=1), buffer_pb2.StepTrained(incarnation=3)],
        weights_before=buffer_pb2.PublishedVersion(version=6, weights_sha256=b"\xab" * 32),
    )
    assert step_header("rft", head) == (
        "step 7 of stage rft: 2 rows, trainer 3, trained 2 times\n"
        "weights version 6 (abababababab) -> not published"
    )


def test_a_population_says_what_is_bent_and_why() -> None:
    population = query_pb2.GetPopulationResponse(
        first_explore_step=2,
        last_explore_step=5,
        num_runs=1200,
        num_generated=1100,
        num_trained=900,
        comparisons=[
            query_pb2.Comparison(
                name="response_length",
                generated_mean=120.0,
                trained_mean=80.5,
                shift=0.2,
                is_significant=True,
            ),
            query_pb2.Comparison(
                name="task",
                generated_mean=float("nan"),
                trained_mean=float("nan"),
                shift=0.01,
                is_significant=True,
            ),
        ],
        left_out=[query_pb2.StateCount(reason="too old", count=200)],
    )
    assert population_lines("rft", population) == [
        "rft, explore steps 2 to 5: 1,200 runs gave 1,100 samples, 900 of them were trained on",
        "  200 were left out: too old",
    ]
    text = shown(population_table(population))
    assert "differs from what was left out by more than chance" in text
    assert "some tasks lost more of their runs" in text
    assert "nan" not in text
