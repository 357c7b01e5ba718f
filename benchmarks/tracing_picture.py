"""One task's trace as a picture, from a real run of the stack without a model.

python -m benchmarks.tracing_picture [--svg docs/images/trace.svg]

Above the way of a task, below that of the train step that learned from it and of the weights it
made.
"""

import argparse
import asyncio
import tempfile
from pathlib import Path
from xml.sax.saxutils import escape

from tests.integration.telemetry.receiver import Receiver, SeenSpan, receiver
from tests.support.model_free.engine import RUN_SECONDS_VARIABLE
from tests.support.model_free.experiment import experiment_plan, run_to_end
from tests.support.model_free.learner import STEP_SECONDS_VARIABLE
from tests.support.model_free.stack import model_free_stack
from trinity.telemetry import names

ROOT = Path(__file__).resolve().parent.parent
STEP = 3
COLOURS = {
    "trinity-buffer": "#4c78a8",
    "trinity-explorer": "#f58518",
    "trinity-trainer": "#54a24b",
    "trinity-synchronizer": "#b279a2",
}
WIDTH, LABELS, ROW, TOP = 1080, 330, 20, 52
FONT = 'font-family="Helvetica, Arial, sans-serif" font-size="12"'


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--svg", type=Path, default=ROOT / "docs/images/trace.svg")
    arguments = parser.parse_args()
    with receiver() as seen:
        asyncio.run(_run(seen))
    arguments.svg.write_text(_picture(*_chosen(seen)))
    print(f"written to {arguments.svg}")


async def _run(seen: Receiver) -> None:
    """A few steps, with a rollout and a train step of a second each."""
    seconds = {"explorer": (RUN_SECONDS_VARIABLE, "1"), "trainer": (STEP_SECONDS_VARIABLE, "1")}
    with tempfile.TemporaryDirectory() as directory:
        plan = experiment_plan(Path(directory), buffer={"total_steps": STEP + 1})
        environment = {
            service: seen.environment() | dict([seconds[service]] if service in seconds else [])
            for service in ("synchronizer", "buffer", "trainer", "explorer")
        }
        async with model_free_stack(plan.job_path, environment=environment) as stack:
            ended = await run_to_end(stack.addresses.synchronizer, plan)
    if ended.reason:
        raise RuntimeError(ended.reason)


def _chosen(seen: Receiver) -> tuple[list[SeenSpan], list[SeenSpan]]:
    """A train step, and a task that it learned from."""
    traces = seen.traces()
    train = next(s for s in seen.named(names.TRAIN) if s.attributes[names.STEP] == STEP)
    return traces[train.links[0][0]], traces[train.trace_id]


def _picture(task: list[SeenSpan], step: list[SeenSpan]) -> str:
    begun = min(span.begun_ns for span in task)
    ended = max(span.ended_ns for span in (*task, *step))
    scale = (WIDTH - LABELS - 90) / (ended - begun)
    lines = [*_rows(task, "the task's trace"), *_rows(step, "the train step's trace")]
    height = TOP + ROW * len(lines) + 16
    drawn = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" {FONT}>',
        f'<rect width="{WIDTH}" height="{height}" fill="white"/>',
    ]
    for i, (service, colour) in enumerate(COLOURS.items()):
        drawn.append(
            f'<rect x="{LABELS + 150 * i}" y="12" width="12" height="12" fill="{colour}"/>'
        )
        drawn.append(_text(LABELS + 150 * i + 18, 22, service.removeprefix("trinity-")))
    drawn += _seconds(begun, ended, scale, height)
    for row, (depth, line) in enumerate(lines):
        y = TOP + ROW * row
        if isinstance(line, str):
            drawn.append(_text(8, y + 14, line, 'font-weight="bold"'))
            continue
        x = LABELS + (line.begun_ns - begun) * scale
        width = max((line.ended_ns - line.begun_ns) * scale, 2)
        colour = COLOURS[line.service]
        drawn.append(_text(16 + 14 * depth, y + 14, _label(line)))
        drawn.append(
            f'<rect x="{x:.1f}" y="{y + 3}" width="{width:.1f}" height="14" fill="{colour}"/>'
        )
        millis = f"{(line.ended_ns - line.begun_ns) / 1e6:.0f} ms"
        drawn.append(_text(x + width + 5, y + 14, millis, 'fill="#555"'))
    return "\n".join([*drawn, "</svg>"]) + "\n"


def _rows(spans: list[SeenSpan], title: str) -> list[tuple[int, SeenSpan | str]]:
    """Parents before children, in order of their beginning."""
    ids = {span.span_id for span in spans}
    rows: list[tuple[int, SeenSpan | str]] = [(0, title)]

    def add(parent: str, depth: int) -> None:
        for span in spans:
            own_parent = span.parent_id if span.parent_id in ids else ""
            if own_parent == parent:
                rows.append((depth, span))
                add(span.span_id, depth + 1)

    add("", 0)
    return rows


def _label(span: SeenSpan) -> str:
    name = span.name.removeprefix("trinity.api.v1.").replace("Service/", ".")
    if span.links and span.name == names.TRAIN:
        return f"{name}  (linked to {len(span.links)} tasks)"
    if span.name == names.SAMPLE:
        return f"{name}  run {span.attributes[names.RUN]}"
    return name


def _seconds(begun: int, ended: int, scale: float, height: int) -> list[str]:
    lines = []
    for second in range(int((ended - begun) / 1e9) + 1):
        x = LABELS + second * 1e9 * scale
        lines.append(
            f'<line x1="{x:.1f}" y1="{TOP - 8}" x2="{x:.1f}" y2="{height - 8}" stroke="#ddd"/>'
        )
        lines.append(_text(x - 4, TOP - 12, f"{second} s", 'fill="#555"'))
    return lines


def _text(x: float, y: float, text: str, style: str = "") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" {style}>{escape(text)}</text>'


if __name__ == "__main__":
    main()
