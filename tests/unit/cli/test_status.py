"""What `trinity status` shows on a terminal of the usual width."""

from rich.console import Console

from trinity.api.v1 import buffer_pb2, synchronizer_pb2
from trinity.cli.status import label_stages, member_table


def test_addresses_are_whole_on_a_narrow_terminal() -> None:
    member = synchronizer_pb2.Member(
        role=synchronizer_pb2.ROLE_TRAINER,
        address="127.0.0.1:25123",
        stage="sft_warmup",
        activity="loading the model of a stage",
        version=30,
        silent_seconds=1.0,
    )
    console = Console(width=80)
    with console.capture() as shown:
        console.print(member_table(synchronizer_pb2.GetStatusResponse(members=[member])))
    assert member.address in shown.get()


def test_stages_of_several_experiments_are_told_apart() -> None:
    experiments = [
        synchronizer_pb2.Experiment(id="a", label="sums/first"),
        synchronizer_pb2.Experiment(id="b", label="sums/second"),
    ]
    keys = [buffer_pb2.StageKey(experiment_id=one.id, stage="rft") for one in experiments]
    work = buffer_pb2.GetBufferStatusResponse(
        stages=[buffer_pb2.StageStatus(key=key) for key in keys]
    )
    named = [one.key.stage for one in label_stages(work, experiments).stages]
    assert named == ["sums/first rft", "sums/second rft"]
    alone = buffer_pb2.GetBufferStatusResponse(stages=work.stages[:1])
    assert [one.key.stage for one in label_stages(alone, experiments).stages] == ["rft"]
