"""Chat: the template of a model turns a conversation into text, which becomes ids and a mask of
those that the assistant says: only they are trained on.

As in transformers, special tokens are parsed out of the whole text, even out of messages.
"""

import json
import re
import time
from functools import cached_property, partial
from itertools import accumulate
from typing import Any

import numpy as np
from numpy import ndarray

from configs.cli import warn
from configs.errors import DataError, TokenizerError, errors_as
from data.tokenizers.tokenizer import SPLIT, Tokenizer

Messages = list[dict[str, str]]
DATE = "%Y-%m-%d"
# files of an imported tokenizer
TEMPLATE = "chat_template.jinja"
SETTINGS = ("special_tokens_map.json", "tokenizer_config.json")  # a template may use their values
GENERATION = {"config.json", "generation_config.json"}  # they list the end tokens
PLAIN = r"""{% for message in messages %}
{{ message.role + ':\n' + message.content }}{{ eos_token if message.role == 'assistant' }}{{ '\n' }}
{%- endfor %}
{% if add_generation_prompt %}
{{ 'assistant:\n' }}
{%- endif %}
"""
# no text has U+FDD0, which is not a character
MARK = "\ufdd0mark\ufdd0"  # before and after what {% generation %} marks
SAID = "\ufdd0said\ufdd0"  # in the place of what is said


def to_messages(texts: list) -> Messages:
    """Messages from texts in which roles and contents alternate."""
    pairs = zip(texts[::2], texts[1::2], strict=True)
    return [{"role": role, "content": content} for role, content in pairs]


def answers_of(messages: Messages) -> list[int]:
    """The indices of the messages of the assistant."""
    return [i for i, message in enumerate(messages) if message["role"] == "assistant"]


def compile_template(template: str, date: str | None) -> Any:
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

        # values that the template may use
        self.names = {"eos_token": self.specials.get(tokenizer.specials["end"], "")}
        for file in SETTINGS:
            for name, value in json.loads(tokenizer.files.get(file, "{}")).items():
                if isinstance(value, dict):  # as a token may be
                    value = value.get("content")
                if value:
                    self.names[name] = value

        own = tokenizer.files.get(TEMPLATE, self.names.get("chat_template"))
        if isinstance(own, list):  # several, each with a name
            own = {each["name"]: each["template"] for each in own}.get("default")

        self.is_own = own is not None
        if self.is_own and tokenizer.splits_specials:
            raise TokenizerError(f"the chat template needs special tokens, and {SPLIT}")

        text = own or PLAIN
        with errors_as(TokenizerError, "the chat template is invalid"):
            self.template = compile_template(text, date)
        self.has_date = "strftime_now" in text

    def render(self, messages: Messages, prompt: bool = False) -> str:
        """The text of a conversation; with `prompt`, an answer follows."""
        return "".join(self.render_pieces(messages, prompt))

    def render_pieces(self, messages: Messages, prompt: bool = False) -> list[str]:
        """The pieces of the text: the second, the fourth and so on are what the template marks."""
        values = self.names | {"messages": messages, "add_generation_prompt": prompt}
        with errors_as(TokenizerError, "the chat template refuses this conversation"):
            return self.template.render(values, tools=None, documents=None).split(MARK)

    @cached_property
    def closing(self) -> str:
        """What ends an answer: the text up to the first special token after its content, if any."""
        _, _, behind = self.render(to_messages(["user", "a", "assistant", SAID])).partition(SAID)
        special = re.search("|".join(map(re.escape, self.specials.values())), behind)
        return behind[: special.end()] if special else behind.rstrip()

    def find_answers(self, messages: Messages, text: str) -> list[int]:
        """Where each answer begins and where it ends, with what closes it, in a text without marks:

            text = prompt + its content + closing + rest

        where closing + rest is what follows SAID in the place of its content. (No turn is rendered
        alone: templates may write one differently once others follow.)"""
        edges: list[int] = []
        for i in answers_of(messages):
            said = list(messages)
            said[i] = messages[i] | {"content": SAID}
            before, found, after = self.render(said).partition(SAID)
            # some templates refuse a conversation without messages
            prompt = self.render(messages[:i], prompt=True) if i else before
            is_whole = text.startswith(prompt) and text.endswith(after)
            if not (found and is_whole and after.startswith(self.closing)):
                raise ValueError(
                    "the chat template does not show where an answer begins or ends; mark it with "
                    "{% generation %}"
                )
            edges += [len(prompt), len(text) - len(after) + len(self.closing)]
        return edges

    def encode(self, messages: Messages) -> tuple[ndarray, ndarray]:
        """Returns (ids, a mask of those that begin in an answer)."""
        pieces = self.render_pieces(messages)
        text = "".join(pieces)

        # places are the characters at which the ids begin
        ids, places = map(np.array, self.tokenizer.encode_specials(text))

        # where an answer begins, where it ends, where the next one begins, and so on: an id is in
        # an answer if an odd number of them precedes it. The template may mark none
        marked = [*accumulate(map(len, pieces[:-1]))]
        edges = marked or self.find_answers(messages, text)
        n_before = np.searchsorted(edges, places, "right")
        mask = n_before % 2 == 1
        if not mask[1:].any():  # the first id is never predicted
            raise ValueError("this conversation has no answer to train on")

        for i in answers_of(messages):
            if i == 0:  # nothing precedes it
                continue
            prompt = self.render(messages[:i], prompt=True)
            if text.startswith(prompt):
                self.check_prompt(prompt, ids[places < len(prompt)].tolist())
        return ids, mask

    def check_prompt(self, prompt: str, trained: list[int]) -> None:
        """In generation, nothing follows a prompt: it must have the ids that are trained on."""
        alone, _ = self.tokenizer.encode_specials(prompt)
        if alone != trained:
            show = self.tokenizer.decode_with_specials
            found = [show([i]) for i in alone[-3:]]
            seen = [show([i]) for i in trained[-3:]]
            raise ValueError(
                f"the prompt of the chat template ends in the tokens {found}, but in {seen} "
                "where an answer follows, which generation never sees; change the white space "
                "between them"
            )

    def encode_prompt(self, messages: Messages) -> list[int]:
        """The ids of a prompt, which an answer follows."""
        ids, _ = self.tokenizer.encode_specials(self.render(messages, prompt=True))
        return ids


def encode_chat(template: ChatTemplate, chunk: Any) -> Any:
    """The ids and the mask of a conversation, a Chunk of prepare.py; or the error of one that the
    template refuses."""
    try:
        with errors_as(DataError, str(chunk.name)):
            return template.encode(to_messages(chunk.texts))
    except DataError as error:
        return error


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


def add_plain_template(tokenizer: Tokenizer, settings: dict) -> None:
    """A run that was trained on conversations, without a template of its own, has the plain one."""
    if settings["objective"]["kind"] == "chat" and not ChatTemplate(tokenizer).is_own:
        tokenizer.files[TEMPLATE] = PLAIN
