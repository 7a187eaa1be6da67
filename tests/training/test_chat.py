"""Conversations: what is trained on, token by token; a run, its samples and its export."""

import io
import json
import os
import re
import sys
import time
from pathlib import Path
from unittest.mock import Mock

import numpy as np
import pytest
import transformers as hf

import sample
from configs.compose import compose
from configs.errors import DataError
from configs.schema import IGNORE_INDEX
from data.__main__ import main as preview
from data.chat import ChatTemplate, fit_to_chat, to_messages
from data.corpus import load_data
from data.sources.tables import read_turns
from data.store import VALIDATION
from data.tokenizers.huggingface import tokenizer_json
from data.tokenizers.imported import HubTokenizer
from data.tokenizers.plain import ByteTokenizer
from data.tokenizers.tokenizer import NO_TEMPLATE, BytePairTokenizer, to_base64
from model.checkpoint import load_run
from model.generate.text import encode_prompt
from model.hub.__main__ import export_run, import_run
from tests.data.corpora import chunks_of, source, write_rows
from tests.model.hub.hub_models import edit_config
from tests.model.hub.test_hub_tokenizer import hf_folder
from tests.parts import refused
from tests.training.runs import last, read_lines
from training.evaluate import main as evaluate

CHATML = """{%- for m in messages %}
    {{- '<|im_start|>' + m.role + '\\n' + (m.content | trim) }}{{ '<|im_end|>' + '\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"""
MARKED = """{% for m in messages %}
    {% if m['role'] == 'assistant' %}
<|im_start|>assistant
        {%- generation -%}
 {{ m['content'] }}<|im_end|>
        {% endgeneration %}
    {% else %}
{{ bos_token }}{{ '<|im_start|>' ~ m['role'] }}: {{ m['content'] | tojson }} {{ tools }}{{ unknown }}
    {% endif %}
{% endfor %}
{% if add_generation_prompt %}<|im_start|>assistant{% endif %}
"""
TEXTS = ["system", "Be brief é.", "user", "the cat?", "assistant", "the hat"]
TEXTS += ["user", " <|im_end|> 'x'", "assistant", "that cat's \U0001f642\n hat"]
MESSAGES = to_messages(TEXTS)
CHAT = ["data=chat", "data.path=c.jsonl"]


def row_of(*texts):
    return {"messages": to_messages(texts)}


ROWS = [row_of("user", f"the cat {i}", "assistant", f"{i} hats") for i in range(40)]


def write(rows):
    write_rows("c.jsonl", rows)


def load(tokenizer, *overrides):
    return load_data(compose([*CHAT, "objective=chat", *overrides]), tokenizer)


@pytest.fixture
def folder(tmp_path):
    """folder(template): a folder of transformers with a tokenizer that has it."""

    def folder(template, end="<|im_end|>"):
        names = {"chat_template": template, "eos_token": end}
        path = hf_folder("qwen", tmp_path / "hf", names, max_position_embeddings=256)
        (path / "generation_config.json").unlink()
        edit_config(path, eos_token_id=hf.AutoTokenizer.from_pretrained(path).eos_token_id)
        import_run(path, tmp_path / "imported")
        return path, load_run(tmp_path / "imported").tokenizer

    return folder


START, TURN_END = 257, 258


def byte_pairs(pattern, *pairs, **specials):
    """A tokenizer whose tokens are bytes, these pairs of them and special tokens."""
    tokens = [*(bytes([byte]) for byte in range(256)), *pairs]
    return BytePairTokenizer(pattern, to_base64(tokens), specials)


def letters(template, *pairs):
    """An imported tokenizer with this template; line ends before a word are words of their own."""
    end = 256 + len(pairs)
    specials = {"end": end, "im_start": end + 1, "im_end": end + 2}
    text = tokenizer_json(byte_pairs(r"\s+(?!\S)|\s|\S+", *pairs, **specials))
    return HubTokenizer(text, {"end": end}, 300, {"chat_template.jinja": template})


def parts(tokenizer, *texts):
    """The ids that are not trained on, those that are, and so on."""
    ids, mask = ChatTemplate(tokenizer).encode(to_messages(texts))
    assert not mask[0]
    return [part.tolist() for part in np.split(ids, np.flatnonzero(np.diff(mask)) + 1)]


TURNS = "{% for m in messages %}<|im_start|>{{ m.role }}:{{ THINKS }}{{ m.content | trim }}<|im_end|>{% endfor %}"
PROMPT = "<|im_start|>assistant:"
ALWAYS = TURNS + PROMPT
ENDS = TURNS + "{% if add_generation_prompt %}" + PROMPT + "{% else %}{{ eos_token }}{% endif %}"
FIRST = "{% if messages[0].role == 'system' %}{% endif %}"
THINKS = "'(hm)' if loop.last and m.role == 'assistant'"


@pytest.mark.parametrize("template", [ALWAYS, ENDS, FIRST + ENDS.replace("THINKS", THINKS)])
def test_templates_that_write_the_last_turn_in_another_way(template):
    """Llama 3's first, Phi 3's and Qwen3's, and that trim it."""
    tokenizer = letters(template)
    last = [START, *b"assistant:"] if template == ALWAYS else [256]
    thought = b"(hm)" if "hm" in template else b""
    assert parts(tokenizer, "assistant", "a", "user", "b", "assistant", " h\u00e9\n") == [
        [START, *b"assistant:"],
        [*b"a", TURN_END],
        [START, *b"user:b", TURN_END, START, *b"assistant:"],
        [*thought, *b"h\xc3\xa9", TURN_END],
        last,
    ]
    fit_to_chat(tokenizer)
    assert tokenizer.end_ids == [256, TURN_END]


def test_the_plain_template_by_hand():
    tokenizer = ByteTokenizer({"end": 256})
    texts = ["system", "x", "user", "<|end|>\u00e9", "assistant", "\nh\u00e9"]
    assert parts(tokenizer, *texts) == [
        [*b"system:\nx\nuser:\n", 256, *b"\xc3\xa9\nassistant:\n"],
        [*b"\nh\xc3\xa9", 256],
        [*b"\n"],
    ]
    tokenizer = byte_pairs(r"\s+|\S+", b"\n\n", "\u00e9".encode(), end=258)
    assert parts(tokenizer, "user", "\n\u00e9", "assistant", "\u00e9") == [
        [*b"user:", 256, 257, 10, *b"assistant:", 10],  # of the whole text
        [257, 258],
        [10],
    ]


def test_a_prompt_has_the_ids_that_are_trained_on():
    """Llama 3's two line ends are one token at the end of a text, and two before an answer."""
    turn = "<|im_start|>{{ m.role }}\n\n{{ m.content }}<|im_end|>"
    ask = "{% if add_generation_prompt %}<|im_start|>assistant\n\n{% endif %}"
    template = f"{{% for m in messages %}}{turn}{{% endfor %}}{ask}"
    texts = ["user", "a", "assistant", "b"]
    assert len(parts(letters(template), *texts)) == 2
    marked = template.replace("{{ m.content", "{% generation %}{{ m.content")
    marked = marked.replace("m.content }}", "m.content }}{% endgeneration %}")
    sentence = r"'t', '\n\n'], but in ['t', '\n', '\n'] where an answer follows"
    for each in (template, marked):
        with refused(re.escape(sentence)):
            parts(letters(each, b"\n\n"), *texts)


@pytest.mark.parametrize("template", [CHATML, MARKED])
def test_ids_and_masks_are_those_of_transformers(folder, template):
    path, tokenizer = folder(template)
    auto = hf.AutoTokenizer.from_pretrained(path)
    theirs = auto.apply_chat_template(MESSAGES, return_assistant_tokens_mask=template == MARKED)
    ids, mask = ChatTemplate(tokenizer).encode(MESSAGES)
    assert ids.tolist() == theirs["input_ids"]
    assert template == CHATML or mask.astype(int).tolist() == theirs["assistant_masks"]
    prompt = auto.apply_chat_template(MESSAGES[:-1], add_generation_prompt=True)["input_ids"]
    assert ChatTemplate(tokenizer).encode_prompt(MESSAGES[:-1]) == prompt


def test_characters_know_the_plain_template(room):
    write(ROWS)
    data = load(None, "tokenizer=char", "size=tiny")
    assert len(data.tokenizer.encode("user:\nassistant:\n")) == 17


def test_rows_of_other_forms():
    pair = ["user", "a", "assistant", "b"]
    assert read_turns("", {"prompt": "a", "completion": "b", "input": "", "system": ""}) == pair
    row = {"instruction": "a", "input": "c", "output": "b", "system": "s"}
    assert read_turns("", row) == ["system", "s", "user", "a\n\nc", "assistant", "b"]
    assert read_turns("", row | {"input": 0})[3] == "a\n\n0"
    assert read_turns("", [message | {"name": None} for message in to_messages(pair)]) == pair


BAD = [
    ({"text": "a"}, "c.jsonl:3 has {'text': 'a'}; expected a list of messages, prompt and comple"),
    (row_of("tool", "a"), "c.jsonl:3 has the message {'role': 'tool', 'content': 'a'}; expected a"),
    (row_of("user", " "), "and a content, not empty"),
    ({"messages": [{"role": "user", "content": "a", "weight": 0}]}, "and no other key"),
    (row_of("user", ["a"]), "c.jsonl:3 has ['a'] as 'content', not text"),
    (row_of("user", "a"), "c.jsonl:3: the assistant has no message to learn from"),
    ({"messages": ["a"]}, 'c.jsonl:3: expected an object such as {"role"'),
    ({"instruction": None, "output": "b"}, "c.jsonl:3 has None as 'instruction', not text"),
]


@pytest.mark.parametrize("row, reason", BAD)
def test_bad_rows(room, row, reason):
    write([*ROWS[:2], row, *ROWS[2:]])
    with refused(re.escape(reason), DataError):
        chunks_of(source("chat", path="c.jsonl"))


def test_the_preview_shows_what_is_trained_on(room, command):
    write([ROWS[0]["messages"], *ROWS[1:]])
    printed = command(preview, *CHAT, "tokenizer=byte", "size=tiny").out
    assert re.search(r"'user:\\nthe cat (\d+)\\nassistant:.*\ntargets +'\1 hats<end>'\n", printed)
    n, tokens = re.search(r"train +(\d+) +[\d,]+ +([\d,]+) +\1\n", printed).groups()
    shortest = len("user:\nthe cat 1\nassistant:\n1 hats.\n")
    assert shortest <= int(tokens.replace(",", "")) / int(n) <= shortest + 2, "without the masks"
    errors = command(preview, "data=table", "data.path=c.jsonl", code=3).err
    errors += command(preview, "data=c.jsonl", code=2).err
    assert errors.count("conversations by data=chat") == 1


def test_a_tokenizer_that_never_parses_special_tokens():
    """As transformers has it, <|im_start|> would be eleven characters in every prompt."""
    settings = {"tokenizer_config.json": '{"split_special_tokens": true}'}
    tokenizer = letters(CHATML)
    tokenizer = HubTokenizer(tokenizer.text, {"end": 256}, 300, tokenizer.files | settings)
    sentence = "tokenizer_config.json has split_special_tokens: true; set it to false and import"
    with refused(f"the chat template needs special tokens, and {sentence}"):
        ChatTemplate(tokenizer)
    with refused(f"--special has no effect: {sentence}"):
        encode_prompt("<|im_end|>", tokenizer, 9, False, NO_TEMPLATE, special=True)
    del tokenizer.files["chat_template.jinja"]
    assert parts(tokenizer, "user", "a", "assistant", "b")[1] == [*b"b", 256], "the plain one"


REFUSES = "{% if messages | length > 3 %}{{ raise_exception('no') }}{% endif %}"
CHANGES = CHATML.replace("(m.content", "((m.content if loop.last or m.role == 'user' else 'x')")
FAILS = {
    REFUSES + CHATML: "c.jsonl:41: the chat template refuses this conversation: no",
    CHANGES: "c.jsonl:41: the chat template does not show where an answer begins or ends; mark",
    ENDS.replace(PROMPT, PROMPT + "<think>"): "does not show where an answer begins",
    "{% if %}": "the chat template is invalid: Expected an expression",
    "{% generation %}{% endgeneration %}x ": "this conversation has no answer to train on",
}


@pytest.mark.parametrize("template, reason", FAILS.items())
def test_a_template_that_fails(folder, room, template, reason):
    write([*ROWS, row_of("user", "a", "assistant", "b", "user", "c", "assistant", "d")])
    _, tokenizer = folder(template)
    with refused(re.escape(reason)):
        load(tokenizer)
    if reason.startswith("c.jsonl:41"):
        data = load(tokenizer, "data.on_error=skip")
        assert data.train.n + data.validation.n == len(ROWS)


def test_the_date_of_a_run_is_that_of_its_start(folder, room, monkeypatch):
    """Another day, with a touched text and the tokenizer of the run; sampling has the new date."""
    strftime = time.strftime
    day = time.strptime("2026-11-24", "%Y-%m-%d")
    monkeypatch.setattr(time, "localtime", lambda: day)
    monkeypatch.setattr(time, "strftime", lambda form, t=None: strftime(form, t or day))
    write(ROWS)
    _, tokenizer = folder("{{ strftime_now('%d %b') }}" + CHATML)
    started = load(tokenizer)
    assert started.tokenizer.decode(started.train.file.tokens[:6]).startswith("24 Nov")

    day = time.strptime("2026-11-25", "%Y-%m-%d")
    os.utime("c.jsonl", (1, 1))
    resumed = load(started.tokenizer)
    assert resumed.content_hash == started.content_hash
    assert ChatTemplate(resumed.tokenizer).render(QUESTION).startswith("25 Nov")


def test_conversations_that_begin_alike_are_in_both_splits(room):
    write([row_of("system", "s", "user", f"{i}", "assistant", f"{i}") for i in range(40)])
    splits = [chunk.split for chunk in chunks_of(source("chat", path="c.jsonl", val_fraction=0.5))]
    assert 9 < splits.count(VALIDATION) < 31


def test_a_conversation_that_is_cut_keeps_an_answer_or_is_dropped(room):
    """(How pairs are cut is in tests/data/test_loader.py.) What is trained on is the next token."""
    long = row_of("user", "a", "assistant", "b" * 90), row_of("user", "a" * 90, "assistant", "b")
    write([*ROWS, *long])
    sizes = ["size=tiny", "model.context_length=64", "data.val_fraction=0.2"]
    data = load(None, "tokenizer=byte", *sizes, "objective.too_long=truncate")
    loaders = data.train, data.validation
    assert sum(loader.n for loader in loaders) == len(ROWS) + 1
    batches = [batch for loader in loaders for batch in loader.evaluation()]
    assert max(batch.targets.shape[1] for batch in batches) == 64
    for batch in batches:
        is_target = batch.targets != IGNORE_INDEX
        assert is_target.any(1).all()
        both = is_target[:, :-1]
        assert batch.inputs["tokens"][:, 1:][both].equal(batch.targets[:, :-1][both])


@pytest.fixture
def say(monkeypatch, command):
    """say(run, *options, stdin=..., code=0): what sample.py --chat prints"""

    def say(run, *options, stdin, code=0):
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin.encode()), "utf-8"))
        args = ["--chat", "--run", run, "--precision", "fp32", "--temperature", "0", *options]
        printed = command(sample.main, *args, "--max-new-tokens", "12", code=code)
        return printed.err if code else printed.out

    return say


def hf_answer(folder, messages):
    """What transformers says, and the ids that end it."""
    auto = hf.AutoTokenizer.from_pretrained(folder)
    model = hf.AutoModelForCausalLM.from_pretrained(folder).eval()
    inputs = auto.apply_chat_template(messages, add_generation_prompt=True, return_tensors="pt")
    output = model.generate(**inputs, max_new_tokens=12, do_sample=False)
    new = output[0, inputs["input_ids"].shape[1] :]
    return auto.decode(new, skip_special_tokens=True), model.generation_config.eos_token_id


QUESTION = to_messages(["system", "x", "user", "the cat 3"])


def both_say(say, run, folder):
    """sample.py and transformers answer the same; what transformers has as ends of a text"""
    answer, ends = hf_answer(folder, QUESTION)
    [row] = say(run, "--json", stdin=json.dumps(QUESTION)).splitlines()
    answered = [*QUESTION, {"role": "assistant", "content": answer}]
    assert json.loads(row)["messages"] == answered
    printed = say(run, "--system", "x", stdin="\nthe cat 3\n  \nand 4?\n")
    turns = [*answered, {"role": "user", "content": "and 4?"}]
    assert printed == f"{answer}\n{hf_answer(folder, turns)[0]}\n"
    theirs = hf.AutoTokenizer.from_pretrained(folder).apply_chat_template(turns)["input_ids"]
    assert ChatTemplate(load_run(run).tokenizer).encode(turns)[0].tolist() == theirs
    return ends


def test_from_a_folder_and_back(folder, start, say, command):
    """With LoRA. Its end of a turn, which did not end a text, does so afterwards."""
    write(ROWS)
    folder(CHATML, "<|endoftext|>")
    usual = ["train.steps=20", "train.batch_size=8", "precision=fp32", "eval.every=null"]
    lora = ["adapt=lora", "optimizer.lr=0.02", "init_from=hf", "name=tuned"]
    start.plainly(*CHAT, *usual, *lora)
    found = json.loads(command(evaluate, "--run", "runs/tuned", "--json").out)
    assert [found["val_loss"]] == pytest.approx(last("runs/tuned", "val_loss")), "merged weights"
    export_run("runs/tuned", "latest", Path("back"), None)
    assert hf_answer("back", QUESTION) != hf_answer("hf", QUESTION)
    ends = both_say(say, "runs/tuned", "back")
    tokenizer = load_run("runs/tuned").tokenizer
    assert ends == tokenizer.end_ids and len(ends) == 2
    assert [*map(tokenizer.backend.id_to_token, ends)] == ["<|endoftext|>", "<|im_end|>"]
    import_run("back", Path("again"))
    assert load_run("again").tokenizer.end_ids == ends


def test_of_our_own(run, say):
    """The plain template goes out with it. Samples show no marks of what is trained on."""
    write(ROWS)
    options = """
        model=llama tokenizer=bpe tokenizer.vocab_size=280 train.steps=30
        model.context_length=96 optimizer.lr=0.01 sample.every=30 name=own
    """
    [sampled] = read_lines(run(*CHAT, *options.split()) / "samples.jsonl")
    assert "assistant:" in sampled["source"] and "[[" not in str(sampled)
    export_run("runs/own", "latest", Path("back"), None)
    both_say(say, "runs/own", "back")
    import_run("back", Path("again"))
    assert say("again", stdin="the cat 3") == say("runs/own", stdin="the cat 3")
    answered = json.dumps(to_messages(["user", "a", "assistant", "1 hats"]))
    errors = say("again", "--json", stdin=answered, code=2)
    assert "the last message is the assistant's: '1 hats'" in errors
    for option in ("--slide", "--n=2", "--json --system=x"):
        errors = say("again", *option.split(), stdin="a", code=2)
        assert "has no effect: --chat has a template" in errors
    assert "line 1: not JSON" in say("again", "--json", stdin="the cat", code=3)


def test_a_conversation_goes_on(run, say, monkeypatch):
    """After an interrupt, with what was said; and when the context is full, with what fits."""
    write(ROWS)
    run(*CHAT, "model=llama", "model.context_length=64", "train.steps=1", "name=own")
    seen = []
    encode = ChatTemplate.encode_prompt

    def record(self, messages):
        seen.append([message["content"] for message in messages])
        return encode(self, messages)

    monkeypatch.setattr(ChatTemplate, "encode_prompt", record)
    with monkeypatch.context() as patch:
        patch.setattr(sample, "show", Mock(side_effect=KeyboardInterrupt))
        say("runs/own", "--system", "s", stdin="a\nb\n")
    [first, second] = seen
    assert first == ["s", "a"] and second[::3] == ["s", "b"]
    seen.clear()
    say("runs/own", "--system", "s", stdin="a\n" + "b" * 15 + "\n")
    assert seen == [["s", "a"], ["s", "a", seen[1][2], "b" * 15], ["s", "b" * 15]]
    seen.clear()
    say("runs/own", "--system", "s", stdin="a\n" + "b" * 99 + "\n" + "c" * 15)
    assert [contents[:3] for contents in seen[1::2]] == [["s", "a", seen[1][2]]] * 2, "b is refused"
