"""`log.group_by_node` puts the logs of services into a folder of their machine."""

from pathlib import Path

import pytest

from trinity.run.local.addresses import InfrastructureFiles, ServiceAddresses
from trinity.run.local.services import StackContext, service_processes
from trinity.run.log_files import log_files


@pytest.mark.parametrize("folder", ["", "10.0.0.7"])
def test_logs_are_in_the_folder_of_their_machine_and_are_found_there(
    tmp_path: Path, folder: str
) -> None:
    found = service_processes(context(tmp_path, folder))
    logs = {process.spec.name: process.spec.log_file for process in found}
    assert set(logs.values()) == {tmp_path / "log" / folder / f"{name}.log" for name in logs}
    (explorer,) = (process.spec for process in found if process.spec.name == "explorer")
    runners = Path(explorer.env["TRINITY_EXPLORER_RUN_LOG_DIR"])
    assert runners == tmp_path / "log" / folder
    runners.mkdir(parents=True)
    for name in ("explorer", "explorer_runner_0"):
        (runners / f"{name}.log").write_text("")
    assert set(log_files(tmp_path, ())) == {"explorer", "explorer_runner_0"}


def context(job_dir: Path, folder: str) -> StackContext:
    address, file = "127.0.0.1:1", job_dir / "secret"
    return StackContext(
        job_dir=job_dir,
        log_level="INFO",
        log_folder=folder,
        addresses=ServiceAddresses(
            synchronizer=address,
            buffer=address,
            trainer=address,
            explorer=address,
            nats_url=f"nats://{address}",
            postgres_dsn=f"postgresql://{address}/a",
        ),
        files=InfrastructureFiles(
            buffer_nats_url=file,
            explorer_nats_url=file,
            buffer_postgres_dsn=file,
            synchronizer_postgres_dsn=file,
        ),
    )
