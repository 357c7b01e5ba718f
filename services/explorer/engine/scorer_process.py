"""A model that scores, in transformers on the processor: a process that scores batches of rows.

    python -m services.explorer.engine.scorer_process MODEL_PATH DTYPE [TOKEN_ID ...]

The first request is empty, and its answer says that the model is loaded, or its `error`. Each other
one has `rows`, each with the tokens, the places of its scores, and whether it is scored as a whole;
its answer has the logits of each place as `scores`. B rows, T tokens, H hidden, L labels.
"""

import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trinity.config.plan.auxiliary import HEADS, model_directory
from trinity.runtime.process.channel import RequestChannel

if TYPE_CHECKING:
    import torch

Row = tuple[list[int], list[int], bool]
ScoreRows = Callable[[Sequence[Row]], list[list[list[float]]]]


def load_scorer(path: str, dtype: str, token_ids: Sequence[int] = ()) -> ScoreRows:
    """Returns a function that scores rows by a model's head.

    The head is its tensors `v_head` or `score`, linear layers with a ReLU between two; the rows of
    its output embeddings of `token_ids`; or the classifier of its class, for whole texts alone.
    """
    import torch
    from transformers import AutoModel, AutoModelForCausalLM, AutoModelForSequenceClassification

    given: dict[str, Any] = {"dtype": dtype}
    head: Callable[[torch.Tensor], torch.Tensor] | None
    if token_ids:
        model = AutoModelForCausalLM.from_pretrained(path, **given)
        weights_LH = model.get_output_embeddings().weight[list(token_ids)].float()
        backbone, head = model.base_model, lambda hidden: hidden @ weights_LH.T
    elif layers := _head_layers(path):
        backbone = AutoModel.from_pretrained(path, **given)
        head = torch.nn.Sequential(*layers)
    else:
        backbone, head = AutoModelForSequenceClassification.from_pretrained(path, **given), None
    backbone.eval()

    def score_rows(rows: Sequence[Row]) -> list[list[list[float]]]:
        with torch.inference_mode():
            tokens_BT, mask_BT = _padded(rows)
            made = backbone(input_ids=tokens_BT, attention_mask=mask_BT)
            if head is not None:
                logits_BTL = head(made.last_hidden_state.float())
                return [
                    logits_TL[places].tolist()
                    for logits_TL, (_, places, _) in zip(logits_BTL, rows, strict=True)
                ]
            if not all(is_whole for _, _, is_whole in rows):
                raise ValueError("the model scores whole texts alone, not their steps")
            return [[logits_L.tolist()] for logits_L in made.logits.float()]

    return score_rows


def _padded(rows: Sequence[Row]) -> "tuple[torch.Tensor, torch.Tensor]":
    """Returns the tokens of rows with their mask, padded at the right."""
    import torch
    from torch.nn.utils.rnn import pad_sequence

    tokens = [torch.tensor(token_ids) for token_ids, _, _ in rows]
    masks = [torch.ones_like(row) for row in tokens]
    return pad_sequence(tokens, batch_first=True), pad_sequence(masks, batch_first=True)


def _head_layers(path: str) -> "list[torch.nn.Module]":
    """Returns the layers of a head in float32; empty for a model without one of these names."""
    import torch
    from safetensors import safe_open

    tensors: dict[str, torch.Tensor] = {}
    directory = model_directory(path) or Path(path)
    for file in sorted(directory.glob("*.safetensors")):
        with safe_open(file, framework="pt") as opened:
            for name in opened.keys():  # noqa: SIM118  # it is no mapping
                if name.startswith(HEADS):
                    tensors[name] = opened.get_tensor(name).float()
    layers: list[torch.nn.Module] = []
    for name in sorted(name for name in tensors if name.endswith("weight")):
        weight_OI, bias_O = tensors[name], tensors.get(name.removesuffix("weight") + "bias")
        layer = torch.nn.Linear(*reversed(weight_OI.shape), bias=bias_O is not None)
        layer.load_state_dict({"weight": weight_OI} | ({} if bias_O is None else {"bias": bias_O}))
        layers += [torch.nn.ReLU(), layer] if layers else [layer]
    return layers


def main() -> None:
    """Answers until there is no more input."""
    channel = RequestChannel()
    os.environ["CUDA_VISIBLE_DEVICES"] = ""
    path, dtype, *token_ids = sys.argv[1:]
    requests = channel.requests()
    next(requests)
    try:
        score_rows = load_scorer(path, dtype, [int(token) for token in token_ids])
    except Exception as error:  # the edge of the process: whatever a model's files raise
        channel.write({"error": f"{type(error).__name__}: {error}"})
        return
    channel.write({})
    for request in requests:
        try:
            channel.write({"scores": score_rows([tuple(row) for row in request["rows"]])})
        except (ValueError, IndexError, RuntimeError) as error:
            channel.write({"error": f"{type(error).__name__}: {error}"})


if __name__ == "__main__":
    main()
