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
    def fields(self) -> dict[str, Any]:
        fields = super().fields()
        answer = {"role": "assistant", "content": self.stream.text}
        return {"messages": [*fields.pop("prompt"), answer]} | fields


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

    def read_rows(self, lines: list[str], n: int) -> list[Row]:
        """Each line has the messages of one conversation, which is answered n times."""
        rows: list[Row] = []
        for number, line in enumerate(lines, 1):
            place = f"line {number}"
            messages = to_messages(read_turns(place, parse_json(place, line)))
            rows += [self.row(messages, sample_id) for sample_id in range(n)]
        return rows

    def reply(self, text: str, write: Callable[[list[Row]], None], max_new_tokens: int) -> None:
        """Write an answer; of one that is interrupted, what was said is remembered."""
        if not text.strip():
            return
        turn = {"role": "user", "content": text}
        row = self.row([*self.messages, turn])
        n_new = min(max_new_tokens, self.context // 2)  # for which there should be room
        if len(row.ids) + n_new > self.context and self.messages != self.system:
            row = self.row([*self.system, turn])
            print("the context is full: earlier turns are forgotten", file=sys.stderr)
        try:
            write([row])
        except KeyboardInterrupt:
            print()
        self.messages = row.fields()["messages"]
