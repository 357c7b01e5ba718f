"""One token more for many sequences of one length, without the cost of a model's modules.

A model of a hundred thousand parameters spends most of a decoding step between its modules. This
is the forward pass of a Qwen2 model, read from the model's own parameters.
N sequences of at most T tokens, H heads of queries and K of keys, each D wide.
"""

from typing import Any

import torch
from torch.nn.functional import linear, rms_norm, scaled_dot_product_attention, silu
from transformers import DynamicCache


class Decoding:
    """The keys and values of N sequences, and the forward pass that makes them longer.

    decoding = Decoding(model, cache, places_N, num_tokens=34)
    logits_NV = decoding.step(tokens_N)
    """

    def __init__(
        self, model: Any, cache: DynamicCache, places_N: torch.Tensor, *, num_tokens: int
    ) -> None:
        """Takes the entries of a prompt's pass in `cache`; `places_N` says whose prompt is whose.

        Raises: ValueError for a model of another type.
        """
        if model.config.model_type != "qwen2":
            raise ValueError(f"cannot decode {model.config.model_type}, only qwen2")
        self._model = model.model
        self._head = model.lm_head.weight
        self._position = cache.get_seq_length()
        longest = self._position + num_tokens
        self._keys = [_longer(layer.keys[places_N], longest) for layer in cache.layers]
        self._values = [_longer(layer.values[places_N], longest) for layer in cache.layers]
        positions_1T = torch.arange(longest)[None]
        self._cos_1TD, self._sin_1TD = self._model.rotary_emb(self._head, positions_1T)

    def step(self, tokens_N: torch.Tensor) -> torch.Tensor:
        """Returns the logits of the token after these, [N, V]."""
        hidden_NE = self._model.embed_tokens.weight[tokens_N]
        for layer, keys_NKTD, values_NKTD in zip(
            self._model.layers, self._keys, self._values, strict=True
        ):
            normed_NE = _normed(layer.input_layernorm, hidden_NE)
            attended_NE = self._attend(layer.self_attn, normed_NE, keys_NKTD, values_NKTD)
            hidden_NE = hidden_NE + _through(layer.self_attn.o_proj, attended_NE)
            normed_NE = _normed(layer.post_attention_layernorm, hidden_NE)
            hidden_NE = hidden_NE + _feed_forward(layer.mlp, normed_NE)
        self._position += 1
        return linear(_normed(self._model.norm, hidden_NE), self._head)

    def _attend(
        self,
        attention: Any,
        hidden_NE: torch.Tensor,
        keys_NKTD: torch.Tensor,
        values_NKTD: torch.Tensor,
    ) -> torch.Tensor:
        width = attention.head_dim
        queries_NHD, key_NKD, value_NKD = (
            _through(projection, hidden_NE).unflatten(-1, (-1, width))
            for projection in (attention.q_proj, attention.k_proj, attention.v_proj)
        )
        keys_NKTD[:, :, self._position] = self._turned(key_NKD)
        values_NKTD[:, :, self._position] = value_NKD
        end = self._position + 1
        attended_NH1D = scaled_dot_product_attention(
            self._turned(queries_NHD)[:, :, None],
            keys_NKTD[:, :, :end],
            values_NKTD[:, :, :end],
            enable_gqa=queries_NHD.shape[1] != key_NKD.shape[1],
        )
        return attended_NH1D.flatten(1)

    def _turned(self, heads_NHD: torch.Tensor) -> torch.Tensor:
        """Rotary position embedding, for the position of now."""
        cos_D, sin_D = self._cos_1TD[0, self._position], self._sin_1TD[0, self._position]
        first, second = heads_NHD.chunk(2, dim=-1)
        return heads_NHD * cos_D + torch.cat((-second, first), dim=-1) * sin_D


def _longer(read_NKPD: torch.Tensor, longest: int) -> torch.Tensor:
    num, heads, length, width = read_NKPD.shape
    longer_NKTD = read_NKPD.new_zeros(num, heads, longest, width)
    longer_NKTD[:, :, :length] = read_NKPD
    return longer_NKTD


def _normed(norm: Any, hidden_NE: torch.Tensor) -> torch.Tensor:
    return rms_norm(hidden_NE, norm.weight.shape, norm.weight, norm.variance_epsilon)


def _through(projection: Any, hidden_NE: torch.Tensor) -> torch.Tensor:
    return linear(hidden_NE, projection.weight, projection.bias)


def _feed_forward(mlp: Any, hidden_NE: torch.Tensor) -> torch.Tensor:
    gate_NF = silu(_through(mlp.gate_proj, hidden_NE))
    return _through(mlp.down_proj, gate_NF * _through(mlp.up_proj, hidden_NE))
