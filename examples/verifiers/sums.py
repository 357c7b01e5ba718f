"""A task set of verifiers with its harness, in one file that needs no network."""

import json
from collections.abc import Iterator
from pathlib import Path

import httpx
import verifiers.v1 as vf
from verifiers.v1.runtimes import ProgramResult

ROOT = Path(__file__).resolve().parents[2]


class SumConfig(vf.TasksetConfig):
    """`env.taskset` of the taskset's `workflow_args`."""

    file: str = "examples/addition/work/data/train.jsonl"


class SumData(vf.TaskData):
    """A row: `prompt` is the question, such as `47+38=`."""

    answer: str


class SumTask(vf.Task[SumData]):
    """A sum; its rewards and metrics are those of the run."""

    @vf.reward(weight=1.0)
    async def correct(self, trace: vf.Trace) -> float:
        """Returns 1 for the right sum."""
        return float((trace.last_reply or "").strip() == self.data.answer)

    @vf.metric
    async def digits(self, trace: vf.Trace) -> float:
        """Returns the number of digits in the answer."""
        return float(sum(map(str.isdigit, trace.last_reply or "")))


class SumTaskset(vf.Taskset[SumTask, SumConfig]):
    """The sums of a file of the addition example."""

    def load(self) -> Iterator[SumTask]:
        """Yields the tasks."""
        for line in (ROOT / self.config.file).read_text().splitlines():
            row = json.loads(line)
            yield SumTask(SumData(prompt=row["question"], answer=row["answer"]), self.config.task)


class OneCallConfig(vf.HarnessConfig):
    """`env.agent.harness` of the taskset's `workflow_args`."""


class OneCall(vf.Harness[OneCallConfig]):
    """Asks once from this process; most harnesses start a program that asks at `endpoint`."""

    APPENDS_SYSTEM_PROMPT = True
    EXECUTES_CODE = False
    NEEDS_CONTAINER = False

    async def launch(
        self,
        ctx: vf.ModelContext,
        trace: vf.Trace,  # noqa: ARG002  # verifiers gives all of them
        runtime: vf.Runtime,  # noqa: ARG002
        endpoint: str,
        secret: str,
        mcp_urls: dict[str, str],  # noqa: ARG002
        data: SumData,
        tool_interception_url: str | None = None,  # noqa: ARG002
    ) -> ProgramResult:
        """Returns the result that the program would have ended with."""
        async with httpx.AsyncClient(timeout=None) as client:
            response = await client.post(
                f"{endpoint}/chat/completions",
                headers={"Authorization": f"Bearer {secret}"},
                json={"model": ctx.model, "messages": [{"role": "user", "content": data.prompt}]},
            )
        is_bad = response.status_code >= 400
        return ProgramResult(int(is_bad), response.text, response.text if is_bad else "")


__all__ = ["OneCall", "SumTaskset"]
