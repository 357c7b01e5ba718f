"""A rank without torch that says what a test has it say, then stays; started in a rank's place.

`python -m tests.integration.trainer.stand_in_rank '[[{"kind": "ended", ...}], [...]]'` has rank n
say the n-th list of events when it is given a stage. A number in a list ends the process with it,
"again" says all of it again, without end.
"""

import json
import os
import sys
import time
from collections.abc import Iterator

from services.trainer.messages import EVENTS_VARIABLE, ORDERS, StageOrder

STEP_SECONDS = 0.05
"""How long each round of a rank takes that goes on for ever."""


def main(script: str) -> None:
    """Obey orders until told to stop."""
    says = json.loads(script)[int(os.environ["RANK"])]
    for line in sys.stdin:
        if not isinstance(ORDERS.validate_json(line), StageOrder):
            return
        for event in _unrolled(says):
            if isinstance(event, int):
                os._exit(event)
            os.write(int(os.environ[EVENTS_VARIABLE]), json.dumps(event).encode() + b"\n")


def _unrolled(says: list[object]) -> Iterator[object]:
    while True:
        for event in says:
            if event == "again":
                time.sleep(STEP_SECONDS)
                break
            yield event
        else:
            return


if __name__ == "__main__":
    main(sys.argv[1])
