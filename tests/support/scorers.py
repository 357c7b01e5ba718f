"""Tiny models that score, of three kinds, and a plain loop over backbone and head."""

import json
import random
from pathlib import Path
from typing import Literal

import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModel, Qwen2Config, Qwen2ForSequenceClassification

from examples.addition.model import build_model, build_tokenizer

ScorerKind = Literal["classifier", "value head", "process"]
KINDS: tuple[ScorerKind, ...] = ("classifier", "value head", "process")
HEADS = {
    "classifier": ("score",),
    "value head": ("v_head.summary",),
    "process": ("score.0", "score.2"),
}
LABELS = {"classifier": 1, "value head": 1, "process": 2}


def save_scorer(directory: Path, kind: ScorerKind, seed: int = 3) -> Path:
    """A random Qwen2 with the addition example's tokenizer and a head of its kind.

    A value head is in a file beside the weights, and the model calls itself `Qwen2ForCausalLM`.
    """
    tokenizer = build_tokenizer()
    tokenizer.save_pretrained(directory)
    model = build_model(tokenizer, seed)
    model.save_pretrained(directory)
    if kind == "value head":
        save_file(_head(kind, model.config.hidden_size), directory / "value_head.safetensors")
        return directory
    file = directory / "model.safetensors"
    tensors = {name: value for name, value in load_file(file).items() if "lm_head" not in name}
    save_file({**tensors, **_head(kind, model.config.hidden_size)}, file, {"format": "pt"})
    names = {
        "classifier": "Qwen2ForSequenceClassification",
        "process": "Qwen2ForProcessRewardModel",
    }
    config = json.loads((directory / "config.json").read_text())
    labels = {str(label): f"LABEL_{label}" for label in range(LABELS[kind])}
    config |= {"architectures": [names[kind]], "id2label": labels}
    config["label2id"] = {name: int(number) for number, name in labels.items()}
    (directory / "config.json").write_text(json.dumps(config))
    return directory


def _head(kind: ScorerKind, hidden: int) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(11)
    names = HEADS[kind]
    sizes = [*[hidden] * len(names), LABELS[kind]]
    found = {}
    for place, name in enumerate(names):
        shape = (sizes[place + 1], sizes[place])
        found[f"{name}.weight"] = torch.randn(shape, generator=generator) / hidden**0.5
        if kind != "classifier":
            found[f"{name}.bias"] = torch.randn(shape[:1], generator=generator)
    return found


class PlainLoop:
    """The logits after each token: the backbone's hidden states, then the head's products."""

    def __init__(self, directory: Path, kind: ScorerKind) -> None:
        self._backbone = AutoModel.from_pretrained(directory, dtype=torch.float32).eval()
        self._head = HEADS[kind]
        self._tensors: dict[str, torch.Tensor] = {}
        for file in directory.glob("*.safetensors"):
            self._tensors |= load_file(file)

    def scores(self, token_ids: list[int]) -> list[list[float]]:
        """A row for each token, with a number for each label."""
        tensors = self._tensors
        with torch.no_grad():
            hidden = self._backbone(torch.tensor([token_ids])).last_hidden_state[0]
            for place, name in enumerate(self._head):
                hidden = torch.relu(hidden) if place else hidden
                hidden = hidden @ tensors[f"{name}.weight"].T + tensors.get(f"{name}.bias", 0.0)
        found: list[list[float]] = hidden.tolist()
        return found


def save_brevity_scorer(directory: Path) -> Path:
    """A sequence classifier that prefers short chats, made by hand.

    Its only layer gives each token the mean over all tokens so far of a mark that the token
    `<|assistant|>` alone has, so the score falls with the number of tokens.
    """
    tokenizer = build_tokenizer()
    tokenizer.save_pretrained(directory)
    config = Qwen2Config(
        vocab_size=len(tokenizer),
        hidden_size=64,
        intermediate_size=64,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=2,
        max_position_embeddings=256,
        num_labels=1,
        pad_token_id=tokenizer.pad_token_id,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
    )
    model = Qwen2ForSequenceClassification(config).to(torch.float32)
    constant, mark, mean = range(3)
    with torch.no_grad():
        for name, tensor in model.named_parameters():
            if "norm" not in name:
                tensor.zero_()
        layer = model.model.layers[0].self_attn
        model.model.embed_tokens.weight[:, constant] = 1.0
        model.model.embed_tokens.weight[tokenizer.convert_tokens_to_ids("<|assistant|>"), mark] = (
            1.0
        )
        layer.v_proj.weight[0, mark] = 1.0
        layer.o_proj.weight[mean, 0] = 2.0
        model.score.weight[0, mean] = 1.0
    model.save_pretrained(directory)
    return directory


def save_chatty_policy(directory: Path, steps: int = 40) -> Path:
    """The addition model, taught to answer any sum by one to five random digits."""
    torch.set_num_threads(1)  # two that wait for each other take minutes on a busy machine
    tokenizer = build_tokenizer()
    tokenizer.save_pretrained(directory)
    model = build_model(tokenizer, 1)
    chances = random.Random(1)
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    end = tokenizer.eos_token_id
    for _ in range(steps):
        rows = []
        for _ in range(32):
            question = f"{chances.randint(10, 99)}+{chances.randint(10, 99)}="
            chat = [{"role": "user", "content": question}]
            prompt = tokenizer.apply_chat_template(chat, add_generation_prompt=True, tokenize=False)
            digits = "".join(chances.choices("0123456789", k=chances.randint(1, 5)))
            rows.append((tokenizer.encode(prompt), [*tokenizer.encode(digits), end]))
        width = max(len(prompt) + len(answer) for prompt, answer in rows)
        tokens, labels = torch.zeros(2, len(rows), width, dtype=torch.long)
        labels.fill_(-100)
        for place, (prompt, answer) in enumerate(rows):
            tokens[place, : len(prompt) + len(answer)] = torch.tensor(prompt + answer)
            labels[place, len(prompt) : len(prompt) + len(answer)] = torch.tensor(answer)
        loss = model(input_ids=tokens, labels=labels).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    model.save_pretrained(directory)
    return directory
