"""Chat: the template of a model turns a conversation into text, which becomes ids and a mask of
those that the assistant says.

As in transformers, special tokens are parsed out of the whole text, even out of messages.
"""

import json
import re
import time
from collections.abc import Sequence
from functools import cached_property, partial
from typing import Any

import numpy as np
from numpy import ndarray

from configs.cli import warn
from configs.errors import DataError, TokenizerError, errors_as
from data.tokenizers.tokenizer import SPLIT, Tokenizer

Messages = list[dict[str, str]]
Spans = list[tuple[int, int]]  # of characters
DATE = "%Y-%m-%d"
# files of an imported tokenizer
TEMPLATE = "chat_template.jinja"
SETTINGS = ("special_tokens_map.json", "tokenizer_config.json")
GENERATION = {"config.json", "generation_config.json"}
PLAIN = r"""{% for message in messages %}
{{ message.role + ':\n' + message.content }}{{ eos_token if message.role == 'assistant' }}{{ '\n' }}
{%- endfor %}
{% if add_generation_prompt %}
{{ 'assistant:\n' }}
{%- endif %}
"""
# before and after what {% generation %} marks; no text has U+FDD0, which is not a character
MARK = "\ufdd0mark\ufdd0"
SAID = "\ufdd0said\ufdd0"  # in the place of what is said


def to_messages(texts: Sequence) -> Messages:
    """Messages from texts in which roles and contents alternate."""
    pairs = zip(texts[::2], texts[1::2], strict=True)
    return [{"role": role, "content": content} for role, content in pairs]


def compiled(template: str, date: str | None) -> Any:
    """Compile as transformers does. {% generation %} becomes a call that puts its text in marks."""
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    def strftime_now(form: str) -> str:
        now = time.strptime(date, DATE) if date else time.localtime()
        return time.strftime(form, now)

    def raise_exception(message: str) -> None:
        raise ValueError(message)

    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
    )
    environment.filters["tojson"] = partial(json.dumps, ensure_ascii=False)
    environment.globals.update(
        raise_exception=raise_exception,
        strftime_now=strftime_now,
        generation=lambda caller: MARK + caller() + MARK,
    )

    template = re.sub(r"(\{%[-+]?\s*)generation\b", r"\1call generation()", template)
    template = re.sub(r"(\{%[-+]?\s*)endgeneration\b", r"\1endcall", template)
    return environment.from_string(template)


class ChatTemplate:
    """The chat template of a tokenizer, or else the plain one. It writes this date, by default
    today's."""

    def __init__(self, tokenizer: Tokenizer, date: str | None = None):
        self.tokenizer = tokenizer
        self.specials = tokenizer.special_texts()

        end = tokenizer.specials["end"]
        # values that the template may use
        self.names = {"eos_token": self.specials.get(end, "")}

        for file in SETTINGS:
            settings = json.loads(tokenizer.files.get(file, "{}"))
            for name, value in settings.items():
                if isinstance(value, dict):  # as a token may be
                    value = value.get("content")
                if value:
                    self.names[name] = value

        own = tokenizer.files.get(TEMPLATE, self.names.get("chat_template"))
        if isinstance(own, list):
            own = {each["name"]: each["template"] for each in own}.get("default")

        self.is_own = own is not None
        if self.is_own and tokenizer.splits_specials:
            raise TokenizerError(f"the chat template needs special tokens, and {SPLIT}")

        with errors_as(TokenizerError, "the chat template is invalid"):
            self.template = compiled(own or PLAIN, date)
        self.has_date = "strftime_now" in (own or PLAIN)

    def render(self, messages: Messages, prompt: bool = False) -> tuple[str, Spans]:
        """Returns (text, the spans that the template marks); with `prompt`, an answer follows."""
        values = self.names | {"messages": messages, "add_generation_prompt": prompt}

        with errors_as(TokenizerError, "the chat template refuses this conversation"):
            marked = self.template.render(values, tools=None, documents=None)
        text = ""
        spans = []

        for number, piece in enumerate(marked.split(MARK)):
            start = len(text)
            text += piece

            if number % 2:  # it was between marks
                spans.append((start, len(text)))
        return text, spans

    @cached_property
    def closing(self) -> str:
        """What ends an answer: the text up to the first special token after its content, if any."""
        text, _ = self.render(to_messages(["user", "a", "assistant", SAID]))
        behind = text.partition(SAID)[2]
        specials = map(re.escape, self.specials.values())
        special = re.search("|".join(specials), behind)
        return behind[: special.end()] if special else behind.rstrip()

    def find_answers(self, messages: Messages, text: str) -> Spans:
        """The spans of the answers: each begins after its prompt and includes what closes it. Its
        end is found by rendering SAID in its place. Templates may write a turn differently once
        others follow."""
        spans = []

        for i, message in enumerate(messages):
            if message["role"] != "assistant":
                continue

            said = list(messages)
            said[i] = message | {"content": SAID}
            shown, _ = self.render(said)
            prompt, found, after = shown.partition(SAID)
            if i:
                prompt, _ = self.render(messages[:i], prompt=True)

            is_whole = text.startswith(prompt) and text.endswith(after)
            if not (found and is_whole and after.startswith(self.closing)):
                reason = "the chat template does not show where an answer begins or ends"
                raise ValueError(f"{reason}; mark it with {{% generation %}}")

            stop = len(text) - len(after) + len(self.closing)
            spans.append((len(prompt), stop))
        return spans

    def encode(self, messages: Messages) -> tuple[ndarray, ndarray]:
        """Returns (ids, a mask of those that begin in an answer)."""
        text, spans = self.render(messages)
        ids, places = map(np.array, self.tokenizer.encode_specials(text))

        mask = np.zeros(len(ids), bool)
        for start, stop in spans or self.find_answers(messages, text):
            mask |= (places >= start) & (places < stop)

        if not mask[1:].any():
            raise ValueError("this conversation has no answer to train on")

        for i in range(1, len(messages)):
            if messages[i]["role"] != "assistant":
                continue
            prompt, _ = self.render(messages[:i], prompt=True)

            # in generation, nothing follows a prompt: it must have the ids that are trained on
            alone, _ = self.tokenizer.encode_specials(prompt)
            trained = ids[places < len(prompt)].tolist()

            if text.startswith(prompt) and alone != trained:
                show = self.tokenizer.decode_with_specials
                found, seen = [[show([i]) for i in each[-3:]] for each in (alone, trained)]
                raise ValueError(
                    f"the prompt of the chat template ends in the tokens {found}, but in {seen} "
                    "where an answer follows, which generation never sees; change the white space "
                    "between them"
                )
        return ids, mask

    def encode_prompt(self, messages: Messages) -> list[int]:
        """The ids of a prompt, which an answer follows."""
        text, _ = self.render(messages, prompt=True)
        ids, _ = self.tokenizer.encode_specials(text)
        return ids


def add_plain_template(tokenizer: Tokenizer, settings: dict) -> None:
    """A run that was trained on conversations, without a template of its own, has the plain one."""
    if settings["objective"]["kind"] == "chat" and not ChatTemplate(tokenizer).is_own:
        tokenizer.files[TEMPLATE] = PLAIN


def fit_to_chat(tokenizer: Tokenizer) -> None:
    """Make the special token after an answer, such as <|im_end|>, an end token. A template that
    writes the date keeps today's, so that a resumed run has the same ids."""
    template = ChatTemplate(tokenizer)
    if template.has_date and tokenizer.date is None:
        tokenizer.date = time.strftime(DATE)

    ids, mask = template.encode(to_messages(["user", "a", "assistant", "b"]))
    last = ids[mask][-2:].tolist()  # white space may follow the special token
    ends = template.specials.keys() & last
    if not ends:
        warn("the chat template does not end answers with a special token: the model may not stop")

    for i in ends - {*tokenizer.end_ids}:
        tokenizer.specials[f"end_{len(tokenizer.end_ids)}"] = i
        for name in GENERATION & tokenizer.files.keys():
            settings = json.loads(tokenizer.files[name]) | {"eos_token_id": tokenizer.end_ids}
            tokenizer.files[name] = json.dumps(settings, indent=2)  # as in model/hub/tokenizer.py


def encode_chat(template: ChatTemplate, chunk: Any) -> Any:
    """The ids of a conversation and their mask, or the error of one that the template refuses."""
    try:
        with errors_as(DataError, str(chunk.name)):
            return template.encode(to_messages(chunk.texts))
    except DataError as error:
        return error
