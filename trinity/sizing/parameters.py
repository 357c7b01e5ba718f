"""Counts the parameters of a model of a given shape."""

from trinity.sizing.model_shape import ModelShape


def count_parameters(shape: ModelShape) -> int:
    """Counts all of the policy's parameters, tied embeddings once."""
    return count_backbone(shape) + (0 if shape.is_tied else shape.vocabulary * shape.hidden)


def count_critic_parameters(shape: ModelShape) -> int:
    """Counts the same model with one value in place of the vocabulary."""
    return count_backbone(shape) + shape.hidden


def count_backbone(shape: ModelShape) -> int:
    """Counts the parameters without the output embeddings."""
    embeddings = shape.vocabulary * shape.hidden
    dense_layers = shape.layers - shape.sparse_layers
    return (
        embeddings
        + shape.layers * (_attention(shape) + _norms(shape))
        + dense_layers * _feed_forward(shape)
        + shape.sparse_layers * _mixture(shape)
        + shape.hidden
    )


def layer_parameters(shape: ModelShape) -> int:
    """Counts the parameters of the largest layer."""
    inner = _mixture(shape) if shape.sparse_layers else _feed_forward(shape)
    return _attention(shape) + _norms(shape) + inner


def _attention(shape: ModelShape) -> int:
    query, kv = shape.query_width, shape.kv_width
    weights = shape.hidden * (2 * query + 2 * kv)
    biases = (query + 2 * kv if shape.qkv_bias else 0) + (shape.hidden if shape.output_bias else 0)
    return weights + biases


def _norms(shape: ModelShape) -> int:
    of_heads = 2 * shape.head_dim if shape.normalizes_qk else 0
    return shape.norms_per_layer * shape.hidden + of_heads


def _feed_forward(shape: ModelShape) -> int:
    """Counts gate, up and down projections."""
    biases = 2 * shape.feed_forward + shape.hidden if shape.feed_forward_bias else 0
    return 3 * shape.hidden * shape.feed_forward + biases


def _mixture(shape: ModelShape) -> int:
    """Counts the experts, the router, and the expert that all tokens share."""
    experts = shape.experts
    if experts is None:
        return 0
    shared = 3 * shape.hidden * experts.shared_width
    gate = shape.hidden if experts.has_shared_gate else 0
    return experts.num * (3 * shape.hidden * experts.width + shape.hidden) + shared + gate
