"""`trinity debug` over an engine without a model: python -m tests.support.model_free.debug"""

import sys

from services.explorer import engines
from services.explorer.debug.__main__ import main
from tests.support.model_free.engine import CharacterTokenizer, start_hash_engine

if __name__ == "__main__":
    engines._load_tokenizer = lambda _: CharacterTokenizer()  # type: ignore[assignment,return-value]
    sys.exit(main(start_hash_engine))
