"""Progress events as a buffer would send them."""

from trinity.api.v1 import buffer_pb2
from trinity.run.progress.view import RunView, StageProgressView


def empty_view() -> RunView:
    """A run of one supervised and one reinforcement stage."""
    return RunView(
        {
            "sft": StageProgressView(name="sft", mode="train", total_steps=2),
            "rft": StageProgressView(name="rft", mode="both", total_steps=3),
        }
    )


def opened(number: int, stage: str, total: int) -> buffer_pb2.ProgressEvent:
    return buffer_pb2.ProgressEvent(
        number=number,
        stage=stage,
        unix_millis=number * 1000,
        opened=buffer_pb2.StageOpened(total_train_steps=total, num_tasks=10),
    )


def batch(number: int, stage: str, step: int, reward: float) -> buffer_pb2.ProgressEvent:
    return buffer_pb2.ProgressEvent(
        number=number,
        stage=stage,
        unix_millis=number * 1000,
        batch=buffer_pb2.BatchComposed(step=step, num_rows=8, metrics={"reward/mean": reward}),
    )


def trained(
    number: int, stage: str, step: int, *, replayed: bool = False
) -> buffer_pb2.ProgressEvent:
    metrics = {
        "actor/loss": 1 / step,
        "perf/total_num_tokens": 100.0,
        "time/step": 2.0,
        "time/read_experience": 1.5,
        "time/train_step": 0.5,
    }
    return buffer_pb2.ProgressEvent(
        number=number,
        stage=stage,
        unix_millis=number * 1000,
        step=buffer_pb2.StepTrained(step=step, metrics=metrics, replayed=replayed),
    )


def evaluated(number: int, version: int, accuracy: float) -> buffer_pb2.ProgressEvent:
    metric = buffer_pb2.MetricSummary(
        name="accuracy", mean=accuracy, standard_error=0.01, num_tasks=1000
    )
    return buffer_pb2.ProgressEvent(
        number=number,
        stage="rft",
        unix_millis=number * 1000,
        evaluation=buffer_pb2.EvaluationDone(
            version=version, taskset="held_out", num_tasks=1000, metrics=[metric]
        ),
    )


def sampled(number: int) -> buffer_pb2.ProgressEvent:
    samples = [buffer_pb2.Sample(prompt="1+1=", response="2", reward=1.0)]
    return buffer_pb2.ProgressEvent(
        number=number,
        stage="rft",
        unix_millis=number * 1000,
        samples=buffer_pb2.Samples(samples=samples),
    )


def whole_run() -> list[buffer_pb2.ProgressEvent]:
    return [
        opened(1, "sft", 2),
        batch(2, "sft", 1, 0.0),
        trained(3, "sft", 1),
        trained(4, "sft", 2),
        opened(5, "rft", 3),
        evaluated(6, 0, 0.6),
        sampled(7),
        batch(8, "rft", 1, 0.5),
        trained(9, "rft", 1),
        batch(10, "rft", 2, 0.75),
        trained(11, "rft", 2),
        evaluated(12, 2, 0.9),
        batch(13, "rft", 3, 1.0),
        trained(14, "rft", 3),
        evaluated(15, 3, 0.85),
    ]


def changed(number: int, stage: str, step: int) -> buffer_pb2.ProgressEvent:
    change = buffer_pb2.SettingChange(
        key="algorithm.optimizer.lr", before="1e-06", now="0.5", from_step=step
    )
    memory = buffer_pb2.SettingChange(
        key="trainer.max_token_len_per_gpu",
        before="64",
        now="32",
        from_step=step,
        only_rounds=True,
    )
    return buffer_pb2.ProgressEvent(
        number=number,
        stage=stage,
        unix_millis=number * 1000,
        changed=buffer_pb2.SettingsChanged(changes=[change, memory]),
    )
