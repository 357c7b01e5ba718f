"""What `trinity status` shows on a terminal of the usual width."""

from rich.console import Console

from trinity.api.v1 import synchronizer_pb2
from trinity.cli.status import member_table


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
