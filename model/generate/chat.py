"""Chat: conversations become prompts by the chat template of a run."""

import sys
from collections.abc import Callable, Sequence
from typing import Any

from configs.cli import print
from data.chat import ChatTemplate, Messages, to_messages
from data.tables import parse_json, read_turns
from model.generate.sampler import Row, Sampler
from model.generate.stream import TextStream


class ChatRow(Row):
    def asked(self) -> dict[str, Any]:
        answer = {"role": "assistant", "content": self.stream.text}
        return {"messages": [*self.prompt, answer]}


class Chat:
    """What has been said so far. Once the context is full, earlier turns are forgotten."""

    def __init__(self, sampler: Sampler, stop: Sequence[str], system: Sequence[str]) -> None:
        self.tokenizer = sampler.tokenizer
        self.template = ChatTemplate(self.tokenizer)
        if not self.template.is_own and sampler.objective.input_kind != "chat":
            raise ValueError("--chat needs a run of data=chat, or an import with a chat template")
        self.context = sampler.model.context_length
        self.stop = stop
        self.system = [{"role": "system", "content": text} for text in system]
        self.messages = self.system

    def row(self, messages: Messages, sample_id: int = 0) -> ChatRow:
        if messages[-1]["role"] == "assistant":
            raise ValueError(f"nothing is asked after {messages[-1]['content']!r:.60}")
        ids = self.template.encode_prompt(messages)
        return ChatRow(messages, ids, TextStream(self.tokenizer, self.stop), sample_id)

    def reply(self, text: str, write: Callable[[list[Row]], None], max_new_tokens: int) -> None:
        """Write an answer; of one that is interrupted, what was said is remembered."""
        if not text.strip():
            return
        turn = {"role": "user", "content": text}
        row = self.row([*self.messages, turn])
        n_new = min(max_new_tokens, self.context // 2)  # for which there should be room
        is_full = len(row.ids) + n_new > self.context
        if is_full and self.messages != self.system:
            row = self.row([*self.system, turn])
            if len(row.ids) < self.context:
                print("the context is full: earlier turns are forgotten", file=sys.stderr)
        try:
            write([row])
        except KeyboardInterrupt:
            print()
        self.messages = row.asked()["messages"]


def read_messages(number: int, line: str) -> Messages:
    place = f"line {number}"
    return to_messages(read_turns(place, parse_json(place, line)))
