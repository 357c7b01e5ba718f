"""The check of the layers that get an adapter."""

import re
from collections.abc import Iterable, Sequence

from torch import nn
from transformers import PreTrainedModel

from trinity.config.schema.model import ALL_LINEAR, Names
from trinity.errors import UserError

KEY = "model.lora_configs"


def check_layers(model: PreTrainedModel, targets: Names, excluded: Names) -> None:
    """Checks that every given name matches a layer that can be adapted.

    Raises: UserError naming those that do not, and the layers that exist.
    """
    layers = dict(model.named_modules())
    linear = {name for name, layer in layers.items() if isinstance(layer, nn.Linear)}
    for key, wanted in (("target_modules", targets), ("exclude_modules", excluded)):
        _check_names(key, wanted, layers, linear)
    if targets == ALL_LINEAR:
        return
    chosen = sorted(adapted(layers, targets) - adapted(layers, excluded))
    if not chosen:
        raise UserError(
            f"`{KEY}`: `exclude_modules` leaves nothing of `target_modules` to adapt: exclude less"
        )
    _check_kinds(model, chosen, linear)


def adapted(layers: Iterable[str], wanted: Names) -> set[str]:
    """Matches names as peft does: a string is a regex for whole names, a list has suffixes."""
    if isinstance(wanted, str):
        return {name for name in layers if re.fullmatch(wanted, name)}
    return {
        name for name in layers if any(name == end or name.endswith(f".{end}") for end in wanted)
    }


def _check_names(key: str, wanted: Names, layers: Iterable[str], linear: set[str]) -> None:
    parts = [wanted] if isinstance(wanted, str) else [(name,) for name in wanted]
    unmatched = [
        str(part if isinstance(part, str) else part[0])
        for part in parts
        if part != ALL_LINEAR and not adapted(layers, part)
    ]
    if unmatched:
        raise UserError(
            f"`{KEY}`: no layer of the model is called {_listed(unmatched)}, as `{key}` has it: "
            f"its linear layers are {_listed(_short(linear))}"
        )


def _check_kinds(model: PreTrainedModel, chosen: Sequence[str], linear: set[str]) -> None:
    others = [name for name in chosen if name not in linear]
    if others:
        raise UserError(
            f"`{KEY}`: `target_modules` has {_listed(_short(others))}, which "
            f"{'is' if len(_short(others)) == 1 else 'are'} not linear: adapters go on "
            f"{_listed(_short(linear))}"
        )
    head = model.get_output_embeddings()
    tied = [name for name in chosen if model.get_submodule(name) is head]
    if tied and model.config.get_text_config().tie_word_embeddings:
        raise UserError(
            f"`{KEY}`: `target_modules` has {_listed(_short(tied))}, whose weights are the input "
            "embeddings' as well: leave it out"
        )


def _short(names: Iterable[str]) -> list[str]:
    """Returns the last part of each name, without duplicates."""
    return sorted({name.rpartition(".")[2] for name in names})


def _listed(names: Sequence[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)


def as_names(names: str | list[str] | None) -> Names:
    """Returns the names in the form of the configuration."""
    return names if isinstance(names, str) else tuple(names or ())
