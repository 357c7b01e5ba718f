"""The answer to `GET /v1/models`."""

from trinity.types import JsonObject


def model_list(*names: str) -> JsonObject:
    """Lists models by the names that requests may give."""
    return {
        "object": "list",
        "data": [{"id": name, "object": "model", "owned_by": "trinity"} for name in names],
    }
