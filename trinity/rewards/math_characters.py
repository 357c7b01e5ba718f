# ruff: noqa: RUF001  # these very characters are looked for
r"""Characters of other keyboards in LaTeX: `2½`, `x²`, full-width and Arabic digits."""

import re
import unicodedata
from decimal import Decimal

_WRITTEN = {
    "×": r" \times ",
    "·": r" \cdot ",
    "⋅": r" \cdot ",
    "∙": r" \cdot ",
    "÷": r" \div ",
    "−": "-",
    "–": "-",
    "‐": "-",
    "‑": "-",
    "π": r"\pi ",
    "∞": r"\infty ",
    "±": r"\pm ",
    "∪": r" \cup ",
    "∩": r" \cap ",
    "∅": r"\emptyset ",
    "∈": r" \in ",
    "≈": r" \approx ",
    "≠": r" \neq ",
    "∶": ":",
    "º": "°",
    "˚": "°",
    "½": r"\frac{1}{2}",
    "⅓": r"\frac{1}{3}",
    "⅔": r"\frac{2}{3}",
    "¼": r"\frac{1}{4}",
    "¾": r"\frac{3}{4}",
    "\N{NO-BREAK SPACE}": " ",
    "\N{NARROW NO-BREAK SPACE}": " ",
    "\N{THIN SPACE}": " ",
}
_FULL_WIDTH = {chr(code + 0xFEE0): chr(code) for code in range(0x21, 0x7F)}
_TABLE = str.maketrans(_WRITTEN | _FULL_WIDTH)
_RAISED = str.maketrans("⁰¹²³⁴⁵⁶⁷⁸⁹⁺⁻ⁿ", "0123456789+-n")
_LOWERED = str.maketrans("₀₁₂₃₄₅₆₇₈₉", "0123456789")
_MULTIPLES = {"百": 100, "千": 1_000, "万": 10_000, "萬": 10_000, "亿": 10**8, "億": 10**8}
_UNITS = {
    "平方厘米": "square centimeters",
    "立方厘米": "cubic centimeters",
    "平方米": "square meters",
    "立方米": "cubic meters",
    "厘米": "centimeters",
    "毫米": "millimeters",
    "千米": "kilometers",
    "公里": "kilometers",
    "千克": "kilograms",
    "公斤": "kilograms",
    "毫升": "milliliters",
    "小时": "hours",
    "分钟": "minutes",
    "美元": "dollars",
    "米": "meters",
    "克": "grams",
    "升": "liters",
    "秒": "seconds",
    "天": "days",
    "岁": "years",
    "年": "years",
    "元": "yuan",
    "円": "yen",
    "度": "degrees",
    "个": "pieces",
    "個": "pieces",
    "人": "people",
    "种": "ways",
    "Ω": "ohms",
    "\N{OHM SIGN}": "ohms",
    "μm": "micrometers",
    "μs": "microseconds",
    "μg": "micrograms",
    "m²": "square meters",
    "m³": "cubic meters",
}
_UNIT = re.compile(rf"(?<=[\d{''.join(_MULTIPLES)}])\s*({'|'.join(_UNITS)})(?=[.。$]*$)")
"""A unit after a number; these words never multiply it."""
_MULTIPLIED = re.compile(
    rf"(?<![\d.,])(\d{{1,15}}(?:\.\d{{1,15}})?)([{''.join(_MULTIPLES)}])(?!\d)"
)
_ROOT = re.compile(r"√\s*(?:\(([^()]*)\)|(\d+(?:\.\d+)?|[a-zA-Z]|\{[^{}]*\}))")


def in_latex(text: str) -> str:
    """Returns the text with LaTeX for what can be written in it; the rest stays as it is."""
    if text.isascii():
        return text
    text = _UNIT.sub(lambda found: rf"\text{{ {_UNITS[found[1]]}}}", text.replace("µ", "μ"))
    text = re.sub("[⁰¹²³⁴⁵⁶⁷⁸⁹⁺⁻ⁿ]+", lambda found: f"^{{{found[0].translate(_RAISED)}}}", text)
    text = re.sub("[₀-₉]+", lambda found: f"_{{{found[0].translate(_LOWERED)}}}", text)
    text = _ROOT.sub(lambda found: rf"\sqrt{{{found[1] or found[2].strip('{}')}}}", text)
    text = re.sub(r"[^\x00-\x7f]", _digit, text.translate(_TABLE))
    return _MULTIPLIED.sub(_product, text)


def _product(found: re.Match[str]) -> str:
    value = f"{Decimal(found[1]) * _MULTIPLES[found[2]]:f}"
    return value.rstrip("0").rstrip(".") if "." in value else value


def _digit(found: re.Match[str]) -> str:
    value = unicodedata.decimal(found[0], None)
    return found[0] if value is None else str(value)
