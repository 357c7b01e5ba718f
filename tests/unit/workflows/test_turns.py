"""Turns are joined by the tokens of the engine, and answers are found in order."""

import random
from collections.abc import Sequence
from itertools import combinations
from operator import eq

import pytest

from tests.support.chat_families import ANSWERS, bpe_tokenizer, rollout
from tests.unit.subtests import as_subtests
from trinity.workflows.turns import lcs_pairs

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


@as_subtests(
    ("told", "answers", "places"),
    [
        ("", "ab", []),
        ("ab", "", []),
        ("abc", "abc", [0, 1, 2]),
        ("yny", "ny", [0, 1]),
        ("ynx", "ny", [1]),
        ("a", "aba", [2]),
        ("ab", "ba", [1]),
        ("xaxbx", "aqbq", [0, 2]),
    ],
)
def test_quotations_and_what_was_left_out_have_no_place(
    told: str, answers: str, places: list[int]
) -> None:
    assert [column for _, column in lcs_pairs(told, answers, eq)] == places


def most(told: Sequence[str], answers: Sequence[str]) -> int:
    def holds(chosen: Sequence[str]) -> bool:
        rest = iter(told)
        return all(one in rest for one in chosen)

    sizes = range(len(answers), -1, -1)
    return next(n for n in sizes if any(map(holds, combinations(answers, n))))


@as_subtests("seed", range(50))
def test_no_choice_of_answers_is_longer(seed: int) -> None:
    dice = random.Random(seed)
    told, answers = (dice.choices("abc", k=dice.randrange(8)) for _ in range(2))
    places = [column for _, column in lcs_pairs(told, answers, eq)]
    assert places == sorted(set(places))
    assert len(places) == most(told, answers)
    assert most(told, [answers[place] for place in places]) == len(places)
