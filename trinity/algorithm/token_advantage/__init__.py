"""Advantages that the trainer computes, token by token over the whole batch, by name."""

from typing import TYPE_CHECKING

from trinity.plugins import Registry

if TYPE_CHECKING:
    from trinity.algorithm.token_advantage.token_batch import Need, TokenAdvantageFn

TOKEN_ADVANTAGES: "Registry[TokenAdvantageFn]" = Registry("token advantage function", {})

NEEDS: "dict[str, frozenset[Need]]" = {}
"""What the functions of this package ask for, by name; the others need nothing more."""
