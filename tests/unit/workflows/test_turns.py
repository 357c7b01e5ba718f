"""Turns are joined by the engine's tokens, also where BPE merges text over their borders."""

import random

import pytest

from tests.support.chat_families import ANSWERS, bpe_tokenizer, rollout

NEWER = r"\s*[\r\n]+|\s+(?!\S)|\s+| ?\p{L}+| ?\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
OLDER = r" ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
"""Line breaks before a word are parted from it, so that a prompt's end changes with the answer."""
TAGS = ["<|end|>", "<|user|>", "<|assistant|>"]
CHAT = (
    "{% for m in messages %}<|{{ m.role }}|>\n\n{{ m.content }}<|end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>\n\n{% endif %}"
)
PLAIN = (
    "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}"
    "{% if add_generation_prompt %}assistant:{% endif %}"
)
FORGETS = CHAT.replace("{{ m.content }}", "{{ m.content.split('</think>')[-1] }}")
SAID = [
    *ANSWERS,
    "because three and four\n</think>seven",
    " 42\n",
    "\n\nthe \u00e9t\u00e9 \N{RAINBOW}",
    "x",
]


@pytest.mark.parametrize("words", [NEWER, OLDER])
@pytest.mark.parametrize("template", [CHAT, PLAIN, FORGETS])
async def test_each_turn_is_trained_as_generated_after_its_very_prompt(
    words: str, template: str
) -> None:
    tokenizer = bpe_tokenizer(TAGS, template, words=words)
    numbers = set()
    for seed in range(8):
        chance = random.Random(seed)
        answers = [cut(chance, tokenizer.encode, chance.choice(SAID)) for _ in range(4)]
        engine, samples = await rollout(tokenizer, template, answers)
        asked = iter(engine.asked)
        place = 0
        for sample in samples:
            body = sample.sequence
            trained = [False] * body.prompt_length + body.action_mask.tolist()
            logprobs = [0.0] * body.prompt_length + body.rollout_logprobs.tolist()
            start = body.prompt_length
            while True in trained[start:]:
                start = trained.index(True, start)
                prompt, answer = next(asked)
                end = start + len(answer)
                assert body.tokens[:end].tolist() == prompt + answer
                assert all(trained[start:end])
                for logprob in logprobs[start:end]:
                    place += 1
                    assert logprob == pytest.approx(-0.001 * place)
                start = end
        assert next(asked, None) is None
        assert sum(int(sample.sequence.action_mask.sum()) for sample in samples) == place
        numbers.add(len(samples))
    assert max(numbers) > 1
    assert (1 in numbers) == (template != PLAIN and words == NEWER)


def cut(chance: random.Random, encode: object, text: str) -> list[int]:
    """Tokens of an answer as a model may generate them: cut anywhere, ended or not."""
    pieces = [text]
    if chance.random() < 0.4:
        at = chance.randrange(len(text) + 1)
        pieces = [text[:at], text[at:]]
    if chance.random() < 0.8:
        pieces.append(TAGS[0])
    return [token for piece in pieces if piece for token in encode(piece)]  # type: ignore[operator]
