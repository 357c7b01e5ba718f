"""The services as modules that patch in points, journals and switches and then run as they are."""

from tests.chaos.crash import install
from tests.chaos.folder import FaultsFolder
from tests.chaos.points import Process
from tests.chaos.weak import weaken


def prepare(process: Process) -> FaultsFolder:
    """Patch this process. Switches lie under the points: a weakened function has them, too."""
    folder = FaultsFolder.from_environment()
    weaken(process, folder)
    install(process, folder)
    return folder
