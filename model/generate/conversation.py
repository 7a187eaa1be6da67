"""Conversation: one prompt after another, or a chat in the template of a tokenizer."""

import sys
from contextlib import suppress
from typing import Any

from configs.cli import print0
from data.chat import ChatTemplate, Messages


class Conversation:
    def __init__(self, sampler: Any, is_trained: bool):
        """is_trained: whether the run was trained on conversations; any other needs a template."""
        self.sampler = sampler
        self.template = ChatTemplate(sampler.tokenizer)
        self.system = [{"role": "system", "content": text} for text in sampler.options.system]
        self.messages = self.system  # so far

        if not (self.template.is_own or is_trained):
            raise ValueError("--chat needs a run of data=chat, or an import with a chat template")

    def encode(self, messages: Messages) -> list[int]:
        if messages[-1]["role"] == "assistant":
            raise ValueError(
                f"the last message is the assistant's: {messages[-1]['content']!r:.60}"
            )
        return self.template.encode_prompt(messages)

    def reply(self, text: str) -> None:
        """Print an answer. If it is interrupted, the conversation keeps what was printed."""
        sampler = self.sampler
        turn = {"role": "user", "content": text}

        row = sampler.encode([*self.messages, turn])
        context = sampler.model.context_length
        n_new = min(sampler.options.max_new_tokens, context // 2)  # there should be room for these
        is_full = len(row.prompt_ids) + n_new > context

        if is_full and self.messages != self.system:
            row = sampler.encode([*self.system, turn])
            if len(row.prompt_ids) <= context:
                print0("the context is full: earlier turns are forgotten", file=sys.stderr)

        try:
            sampler.write([row])
        except KeyboardInterrupt:
            print0()
        self.messages = with_answer(row)


def with_answer(row: Any) -> Messages:
    """The messages of a prompt, and the answer."""
    return [*row.prompt, {"role": "assistant", "content": row.stream.text}]


def interact(sampler: Any) -> None:
    """Read one prompt after another; an error or an interrupt ends only the current one."""
    with suppress(ImportError):  # not available on every system
        import readline  # noqa: F401  line editing and history

    with suppress(EOFError):
        while True:
            try:
                prompt = input("> " if sys.stdin.isatty() else "")

                if not sampler.options.chat:
                    sampler.answer([prompt])
                elif prompt.strip():
                    sampler.chat.reply(prompt)
            except ValueError as error:
                print0(f"error: {error}", file=sys.stderr)
            except KeyboardInterrupt:
                print0()
