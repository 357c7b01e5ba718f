"""Sends samples through Data-Juicer: applies its filters and passes on its statistics."""

from trinity.algorithm.advantage.needs import Arguments, Needs, needs
from trinity.errors import UserError
from trinity.operators.rollouts import Changes, Rollouts
from trinity.runtime.json_values import JsonValue
from trinity.user_code.data_juicer import client as dj_client
from trinity.user_code.data_juicer.address import check_address

NUMBER = "sample"


def _needs(arguments: Arguments) -> Needs:
    """Returns the needs; raises UserError without operators, or for a forbidden server."""
    if (arguments.get("operators") is None) == (arguments.get("config_path") is None):
        raise UserError("give either `operators` or `config_path`")
    check_address(str(arguments.get("server_url", "")))
    return Needs(content=True, one_group=True)


@needs(_needs)
def data_juicer(
    rollouts: Rollouts,
    *,
    server_url: str,
    operators: list[dict[str, JsonValue]] | None = None,
    config_path: str | None = None,
    np: int = 4,
    limit_seconds: float = 120.0,
) -> Changes:
    """Applies operators of a Data-Juicer server, from a list or its own configuration file.

    Rows have the columns text and response (both the response), prompt, reward and sample. Samples
    missing from the answer are left out; numbers of its statistics are `Rollouts.numbers` for the
    operators that follow. `server_url` defaults to `service.data_juicer.server_url`.
    """
    session = dj_client.session(
        server_url,
        operators=operators,
        config_path=config_path,
        num_processes=np,
        limit_seconds=limit_seconds,
    )
    size = len(rollouts.rewards)
    rows = dj_client.read_rows(session.process_rows(_written(rollouts)))
    places_K = dj_client.row_indices(rows, column=NUMBER, size=size, what="samples")
    return Changes(
        left_out=dj_client.left_out(places_K, size),
        reason="Data-Juicer leaves it out",
        numbers=dj_client.statistics(rows, places_K, size),
    )


def _written(rollouts: Rollouts) -> bytes:
    responses = [content.response_text for content in rollouts.contents]
    return dj_client.write_columns(
        {
            NUMBER: list(range(len(responses))),
            "text": responses,
            "prompt": [content.prompt_text for content in rollouts.contents],
            "response": responses,
            "reward": rollouts.rewards.tolist(),
        }
    )
