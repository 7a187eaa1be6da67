"""Logits processor: the rules of an imported generation_config.json, applied by transformers."""

import json
from argparse import Namespace
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import cycle

import torch
from torch import Tensor

from model.generate.decode import Rows

NAMES = """
    repetition_penalty no_repeat_ngram_size bad_words_ids min_length min_new_tokens
    forced_bos_token_id forced_eos_token_id suppress_tokens begin_suppress_tokens
"""


def generation_rules(settings: str, options: Namespace) -> dict:
    """The rules in a generation_config.json, except those that the command line overrides. A 0, an
    empty list or a penalty of 1 is no rule, unless it is the id of a forced token."""
    found = json.loads(settings)

    if found.get("repetition_penalty") == 1 or options.repetition_penalty is not None:
        found["repetition_penalty"] = None
    given = {name: found.get(name) for name in NAMES.split()}

    return {
        name: value
        for name, value in given.items()
        if value or (value == 0 and name.startswith("forced"))
    }


@dataclass
class LogitsProcessor:
    """Changes logits as the rules say; those of forbidden tokens become -inf."""

    rules: dict
    prompts: Rows
    max_new_tokens: int
    stop: Sequence[int]

    def __call__(self, rows: Rows, step: int, logits_BV: Tensor) -> Tensor:
        """The logits of each row, `step` tokens after its prompt, with what generate() of
        transformers would apply to them. All beams share one prompt."""
        from model.hub.family import load_transformers

        theirs = load_transformers()
        generator = theirs.GenerationMixin()
        generator.config = Namespace(is_encoder_decoder=True)  # it would warn of an empty prompt
        processed = []

        for row, prompt, logits_1V in zip(rows, cycle(self.prompts), logits_BV.split(1)):
            # a row that outgrew the context has dropped tokens, which some rules count
            n_dropped = len(prompt) + step - len(row)
            ids = logits_1V.new_tensor([row[:1] * n_dropped + row], dtype=torch.long)

            longest = len(prompt) + self.max_new_tokens
            config = theirs.GenerationConfig(**self.rules, max_length=longest)
            config._eos_token_tensor = ids.new_tensor(self.stop)

            apply = generator._get_logits_processor(config, len(prompt))
            processed.append(apply(ids, logits_1V))
        return torch.cat(processed)
