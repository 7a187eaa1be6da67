"""Chat: a sampler of answers in conversations, by the chat template of its run."""

import sys
from collections.abc import Sequence
from typing import Any

from configs.cli import print
from data.chat import ChatTemplate, Messages, read_turns, to_messages
from data.readers import parse_json
from model.checkpoint import LoadedRun
from model.generate.sampler import Row, Sampler


class ChatSampler(Sampler):
    """Its prompts are messages."""

    def __init__(self, run: LoadedRun) -> None:
        super().__init__(run)
        self.continues = False  # it answers
        self.template = ChatTemplate(run.tokenizer)
        if not self.template.is_own and self.objective.input_kind != "chat":
            needed = "a run of data=chat, or an import with a chat template"
            raise ValueError(f"--chat needs {needed}")

    def encode(self, prompt: Any, special: bool, slide: bool) -> list[int]:
        if prompt[-1]["role"] == "assistant":
            raise ValueError(f"nothing is asked after {prompt[-1]['content']!r:.60}")
        return self.template.encode_prompt(prompt)


class Conversation:
    """What has been said so far. Once the context is full, earlier turns are forgotten."""

    def __init__(self, sampler: Sampler, system: Sequence[str], max_new_tokens: int) -> None:
        self.sampler = sampler
        self.system = [{"role": "system", "content": text} for text in system]
        self.messages = self.system
        self.context = sampler.model.context_length
        self.longest = self.context - min(max_new_tokens, self.context // 2)  # leaves some room

    def ask(self, text: str, stop: Sequence[str]) -> Row:
        turn = {"role": "user", "content": text}
        row = self.sampler.row([*self.messages, turn], stop=stop)
        if len(row.ids) > self.longest and self.messages != self.system:
            row = self.sampler.row([*self.system, turn], stop=stop)
            if len(row.ids) < self.context:
                print("the context is full: earlier turns are forgotten", file=sys.stderr)
        return row

    def remember(self, row: Row) -> None:
        self.messages = answered(row)


def answered(row: Row) -> Messages:
    return [*row.prompt, {"role": "assistant", "content": row.stream.text}]


def read_messages(number: int, line: str) -> Messages:
    place = f"line {number}"
    return to_messages(read_turns(place, parse_json(place, line)))
