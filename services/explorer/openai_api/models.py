"""What `GET /v1/models` tells."""

from trinity.types import JsonObject


def model_list(*names: str) -> JsonObject:
    """Models by the names that requests may give."""
    return {
        "object": "list",
        "data": [{"id": name, "object": "model", "owned_by": "trinity"} for name in names],
    }
