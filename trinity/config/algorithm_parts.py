"""The functions that an algorithm is made of, found by name, with their arguments."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from trinity.algorithm.advantage import ADVANTAGES
from trinity.algorithm.algorithm_type import Part
from trinity.algorithm.entropy import ENTROPY_LOSSES
from trinity.algorithm.forms import GROUP_ADVANTAGE, POLICY_LOSS, TOKEN_ADVANTAGE, Form, form_of
from trinity.algorithm.policy_loss import POLICY_LOSSES
from trinity.algorithm.sample_strategy import SAMPLE_STRATEGIES
from trinity.algorithm.signature import Signature, read_signature
from trinity.algorithm.token_advantage import TOKEN_ADVANTAGES
from trinity.config.arguments import complete_arguments
from trinity.config.near import did_you_mean
from trinity.config.section import Args
from trinity.errors import UserError
from trinity.plugins import load_plugins, plugin_dirs_from_environment

KL_CONTROLLER = "trinity.algorithm.kl.controller.kl_controller"


class Functions(Protocol):
    """A registry of functions of any kind."""

    @property
    def builtins(self) -> Mapping[str, str]:
        """Dotted paths by name."""

    def names(self) -> list[str]:
        """Every name."""

    def get(self, key: str) -> object:
        """The function with this name or at this dotted path."""


_OWN: dict[Part, tuple[tuple[Functions, Form], ...]] = {
    "advantage_fn": ((ADVANTAGES, GROUP_ADVANTAGE), (TOKEN_ADVANTAGES, TOKEN_ADVANTAGE)),
    "policy_loss_fn": ((POLICY_LOSSES, POLICY_LOSS),),
}
"""Parts that users may bring."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundPart:
    """A function, not called yet."""

    part: Part
    name: str
    signature: Signature
    form: Form | None = None
    """How it is called, for parts that users may bring."""
    is_own: bool = False
    """True for a user's function."""

    def arguments(self, declared: Args, given: Args) -> Args:
        """Merges the user's arguments over the type's and the defaults (a user's part has its own).

        Raises: UserError naming an argument that is unknown, wrong or missing.
        """
        return complete_arguments(
            self.signature,
            {**declared, **given},
            function=self.name,
            key=f"algorithm.{self.part}_args",
            is_own=self.is_own,
        )


def find_part(part: Part, name: str) -> FoundPart:
    """The function with this name; `none` accepts and ignores the arguments of its kind.

    Raises: UserError when there is none, or its signature does not fit the part.
    """
    if part in ("kl_penalty_fn", "kl_loss_fn"):
        return FoundPart(part=part, name=name, signature=read_signature(KL_CONTROLLER))
    if part == "sample_strategy":
        return _builtin(part, name, SAMPLE_STRATEGIES.builtins)
    if part == "entropy_loss_fn":
        known = ENTROPY_LOSSES.builtins
        return _builtin(part, name, {**known, "none": known["default"]})
    for registry, form in _OWN[part]:
        if path := registry.builtins.get(name):
            signature = read_signature(path)
            return FoundPart(part=part, name=name, signature=signature, form=form)
    return _own(part, name)


def _builtin(part: Part, name: str, known: Mapping[str, str]) -> FoundPart:
    if name not in known:
        raise UserError(f"`algorithm.{part}: {name}` is not supported{did_you_mean(name, known)}")
    return FoundPart(part=part, name=name, signature=read_signature(known[name]))


def _own(part: Part, name: str) -> FoundPart:
    """Imports a user's function, so that its errors are found now and not in a service."""
    function, forms = _function(part, name)
    try:
        form, signature = form_of(function, forms)
    except UserError as error:
        raise UserError(f"`algorithm.{part}: {name}` {error}") from error
    return FoundPart(part=part, name=name, signature=signature, form=form, is_own=True)


def _function(part: Part, name: str) -> tuple[object, tuple[Form, ...]]:
    """The function with this name, and the call forms allowed for it."""
    own = _OWN[part]
    load_plugins(plugin_dirs_from_environment())
    for registry, form in own:
        if name in registry.names():
            return registry.get(name), (form,)
    if "." in name:
        return own[0][0].get(name), tuple(form for _, form in own)
    names = [known for registry, _ in own for known in registry.names()]
    raise UserError(
        f"`algorithm.{part}: {name}` is not supported{did_you_mean(name, names)} "
        "(a dotted path names a function of your own)"
    )
