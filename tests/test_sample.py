"""From checkpoints of every family to text: what is given, what is shown, what is refused."""

import io
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import sample
from configs.cli import run_command
from configs.compose import compose
from data.tokenizers.tokenizer import CharTokenizer
from model.attention_maps import attention_maps, name_ticks
from model.checkpoint.files import newest_run
from model.checkpoint.load import load_run
from model.generate.options import encode_prompt
from model.generate.stream import TextStream, escape_control
from tests.parts import ROOT
from train import main as train
from training.sweep import launch

TEXT = "".join(f"line {i} of a text, don't {i * i}\n" for i in range(400))
SHORT = ["size=tiny", "tokenizer=byte", "train.steps=3", "train.batch_size=4", "eval.max_examples=2"]
SHORT += ["precision=fp32", "model.context_length=32"]
BOOK, PAIRS = ["data=text", "data.path=book.txt"], ["data=synthetic", "data.size=200"]
FAMILIES = {
    "gpt2": BOOK,
    "deepseek": BOOK,
    "bert": BOOK,
    "t5": BOOK,
    "bart": PAIRS,
    "llama": PAIRS,
}


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    """A folder with a short run of each family."""
    home, before = tmp_path_factory.mktemp("home"), Path.cwd()
    os.chdir(home)
    try:
        Path("book.txt").write_text(TEXT)
        for model, data in FAMILIES.items():
            assert launch(train, compose, [f"model={model}", f"name={model}", *data, *SHORT]) == 0
    finally:
        os.chdir(before)
    return home


@pytest.fixture
def say(home, monkeypatch, capsys):
    """What is shown of these words, or (exit code, the error)."""
    monkeypatch.chdir(home)

    def said(*words, run="gpt2", stdin=b""):
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin), encoding="utf-8"))
        capsys.readouterr()
        code = run_command(
            sample.main, ["--precision", "fp32", *(["--run", f"runs/{run}"] if run else []), *words]
        )
        shown = capsys.readouterr()
        assert "Traceback" not in shown.err
        errors = [line for line in shown.err.splitlines() if line.startswith("error: ")]
        return (code, errors[0]) if code and len(errors) == 1 else shown.out

    return said


@pytest.fixture
def terminal(say, monkeypatch):
    """The same on a terminal, piece by piece as it is shown."""

    def shown(*words, **rest):
        pieces, usual = [], sample.show
        monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
        monkeypatch.setattr(sample, "show", lambda text: (pieces.append(text), usual(text)))
        whole = say(*words, **rest)
        return pieces, whole

    return shown


def rows(text):
    return [json.loads(line) for line in text.splitlines()]


@pytest.mark.parametrize("model", FAMILIES)
def test_every_family_speaks(say, model):
    words = ["--prompt", "line [MASK] of", "--json"]
    [row] = rows(say(*words, *([] if model == "bert" else ["--max-new-tokens", "6"]), run=model))
    assert set(row) == {"prompt", "text", "ids", "logprobs", "stop"}
    assert row["prompt"] == "line [MASK] of" and len(row["ids"]) == len(row["logprobs"])
    assert row["stop"] in ([None] if model == "bert" else ["end", "length"])
    assert all(logprob < 0 for logprob in row["logprobs"])


def test_a_decoder_goes_on(say):
    words = ["--prompt", "line 1", "--max-new-tokens", "12"]
    [row] = rows(say(*words, "--json"))
    assert say(*words) == f"line 1{row['text']}\n"
    opened = load_run("runs/gpt2")
    assert opened.tokenizer.decode(row["ids"]) == row["text"]
    text = torch.tensor([[*b"line 1", *row["ids"]]])
    logprobs = opened.model(text)[0, 5:-1].log_softmax(-1).gather(-1, text[0, 6:, None])[:, 0]
    assert row["logprobs"] == pytest.approx(logprobs.tolist(), abs=1e-4)


def test_seeds(say):
    words = ["--prompt", "line", "--max-new-tokens", "20", "--n", "3"]
    first, again, other = say(*words), say(*words), say(*words, "--seed", "1")
    assert first == again != other
    samples = first.split("\n---\n")
    assert len(samples) == len(set(samples)) == 3
    assert say(*words[:-2]).removesuffix("\n") == samples[0]


def test_a_file_is_its_lines_each_alone(say):
    Path("prompts.txt").write_text("line 1\n\nan unlike one\r\nl\n", encoding="utf-8-sig")
    usual = ["--max-new-tokens", "40", "--json", "--n", "2"]  # past the context of 32
    together = rows(say("--file", "prompts.txt", *usual))
    assert [row["prompt"] for row in together] == [p for p in ("line 1", "an unlike one", "l") for _ in "12"]
    alone = [row for p in ("line 1", "an unlike one", "l") for row in rows(say("--prompt", p, *usual))]
    assert [row["ids"] for row in together] == [row["ids"] for row in alone]
    assert together[0]["logprobs"] == pytest.approx(alone[0]["logprobs"], abs=1e-4)


def test_many_lines_are_written_in_turn(say, monkeypatch):
    Path("many.txt").write_text("".join(f"line {i}\n" for i in range(5)))
    usual = ["--file", "many.txt", "--n", "2", "--max-new-tokens", "5"]
    plain, told = say(*usual), rows(say(*usual, "--json"))
    monkeypatch.setattr(sample, "TOGETHER", 3)
    assert say(*usual) == plain and plain.count("---\n") == 9
    assert [row["ids"] for row in rows(say(*usual, "--json"))] == [row["ids"] for row in told]


def test_stdin_is_one_prompt(say):
    usual = ["--max-new-tokens", "5"]
    assert say(*usual, stdin="a\nnaïve\n".encode()) == say("--prompt", "a\nnaïve", *usual)


def test_lines_that_end_in_two_characters_and_marks_of_an_encoding(say):
    usual, plain = ["--max-new-tokens", "5"], say("--prompt", "a\nb", "--max-new-tokens", "5")
    assert say(*usual, stdin=b"a\r\nb\r\n") == say(*usual, stdin=b"\xef\xbb\xbfa\nb") == plain
    alone = say("--prompt", "a", *usual)
    assert say("--interactive", *usual, stdin=b"\xef\xbb\xbfa\r\n") == alone


@pytest.mark.parametrize("text", ["-x", "--", "-", "-1", "--run=", "--prompt=a"])
def test_a_text_may_begin_with_a_dash(say, text):
    usual = ["--max-new-tokens", "5", "--json"]
    [row] = rows(say(f"--prompt={text}", *usual))
    assert row["prompt"] == text
    if not text.startswith(("--r", "--p")):
        assert rows(say("--prompt", text, "--stop", text, *usual))[0]["prompt"] == text


def test_a_stop_may_be_dashes(say, monkeypatch):
    heard, usual = [], sample.Voice

    def spy(tokenizer, stops, before):
        heard.append(stops)
        return usual(tokenizer)

    monkeypatch.setattr(sample, "Voice", spy)
    say("--prompt", "a", "--max-new-tokens", "2", "--stop", "--", "--stop", "-x", "--stop=--")
    assert heard == [["--", "-x", "--"]]


def test_a_stop_that_cannot_be_written_is_refused(say, monkeypatch):
    usual = sample.open_run
    letters = CharTokenizer("".join(map(chr, range(256))), {"end": 256})
    monkeypatch.setattr(sample, "open_run", lambda *given: usual(*given)._replace(tokenizer=letters))
    code, said = say("--prompt", "a", "--stop", "a\u2603")
    assert (
        code == 2 and "--stop 'a\u2603' is never written: the character '\u2603' is not among the 256" in said
    )


def test_several_prompts(say):
    usual = ["--max-new-tokens", "5", "--json"]
    both = rows(say("--prompt", "line", "--prompt", "of", *usual))
    assert [row["prompt"] for row in both] == ["line", "of"]
    assert [row["ids"] for row in both] == [
        rows(say("--prompt", p, *usual))[0]["ids"] for p in ("line", "of")
    ]


def test_a_stop_string(say):
    words = ["--prompt", "line", "--max-new-tokens", "30", "--json"]
    [whole] = rows(say(*words))
    middle = whole["text"][10:12]
    [row] = rows(say(*words, "--stop", "never there", "--stop", middle))
    assert row["stop"] == "stop string" and whole["stop"] == "length"
    assert row["text"] == whole["text"][: whole["text"].index(middle)]
    assert row["ids"] == whole["ids"][: len(row["ids"])] and len(row["ids"]) < 30


def test_one_conversation(say):
    shown = say("--interactive", "--max-new-tokens", "5", stdin=("line\n\n" + 40 * "x" + "\nof\n").encode())
    expected = [say("--prompt", prompt, "--max-new-tokens", "5") for prompt in ("line", "of")]
    assert shown == "".join(expected), "an error does not end it"


def interrupted(*arguments):
    raise KeyboardInterrupt


def test_enough_of_one_text(say, monkeypatch):
    monkeypatch.setattr(sample, "write", interrupted)
    assert say("--interactive", stdin=b"line\nof\n") == "\n\n"


def test_enough_while_it_comes(terminal, monkeypatch):
    """The shell's next prompt has a line of its own."""
    monkeypatch.setattr(TextStream, "finish", interrupted)
    pieces, whole = terminal("--prompt", "line", "--max-new-tokens", "2")
    assert len(pieces) == 3 and whole == escape_control("".join(pieces)) + "\n"


def test_enough_of_a_pipe(say, monkeypatch):
    monkeypatch.setattr(TextStream, "finish", interrupted)
    assert say("--prompt", "line", "--max-new-tokens", "2") == ""


WRONG_DRAWS = {
    "--temperature -1": "temperature is -1.0",
    "--top-k 0": "top_k is 0",
    "--max-new-tokens 0": "max_new_tokens must be",
    "--top-p 0": "top_p is 0.0",
    "--repetition-penalty 0": "repetition_penalty is 0.0",
}


@pytest.mark.parametrize("words", WRONG_DRAWS)
def test_what_no_prompt_could_mend_is_said_at_once(say, words):
    for stdin in (b"line\nof\n", b""):
        code, said = say("--interactive", *words.split(), stdin=stdin)
        assert code == 2 and WRONG_DRAWS[words] in said
    code, said = say("--interactive", "--beams", "0", run="bart")
    assert code == 2 and "beams is 0" in said


def test_a_terminal_is_told_as_it_comes(terminal):
    words = ["--prompt", "line\x1b[2J", "--max-new-tokens", "9", "--temperature", "3"]
    pieces, whole = terminal(*words)
    assert len(pieces) == 11 and pieces[0] == "line\x1b[2J"
    assert whole.startswith(r"line\x1b[2J") and "\x1b" not in whole
    at_once, same = terminal(*words, "--no-stream")
    assert len(at_once) == 1 and same == whole
    assert len(terminal(*words, "--n", "2")[0]) == 2


def test_json_on_a_terminal_is_ascii(terminal):
    _, line = terminal("--prompt", "☃\x9b", "--json", "--max-new-tokens", "1")
    assert line.isascii() and json.loads(line)["prompt"] == "☃\x9b"


def test_masks_are_filled(say, monkeypatch):
    shown = say("--prompt", "li[MASK]e [MASK]", run="bert").splitlines()
    assert len(shown) == 3 and shown[1].startswith("  [MASK] 1: ") and shown[2].startswith("  [MASK] 2: ")
    opened, mask = load_run("runs/bert"), 257
    text = torch.tensor([[*b"li", mask, *b"e ", mask]])
    shares, best = opened.model(text)[0, 2].softmax(-1).topk(5)
    expected = (
        f"{opened.tokenizer.decode_with_specials([i])!r} {p:.3f}"
        for i, p in zip(best.tolist(), shares, strict=True)
    )
    assert shown[1] == f"  [MASK] 1: {', '.join(expected)}"
    Path("masks.txt").write_text("li[MASK]e [MASK]\n[MASK]e\n")
    [row, short] = rows(say("--file", "masks.txt", "--json", run="bert"))
    [alone] = rows(say("--prompt", "[MASK]e", "--json", run="bert"))
    monkeypatch.setattr(sample, "TOGETHER", 1)
    assert [each["ids"] for each in rows(say("--file", "masks.txt", "--json", run="bert"))] == [
        row["ids"],
        short["ids"],
    ]
    assert short["ids"] == alone["ids"] and short["logprobs"] == pytest.approx(alone["logprobs"], abs=1e-5)
    assert row["ids"][0] == best[0] and row["logprobs"][0] == pytest.approx(shares[0].log().item(), abs=1e-4)
    assert row["text"] == shown[0] and len(short["ids"]) == 1


def test_masks_of_a_source_are_sentinels(home):
    tokenizer = load_run(home / "runs/t5").tokenizer
    first, second = (tokenizer.specials[f"sentinel_{n}"] for n in (0, 1))
    assert encode_prompt("a[MASK][MASK]b", tokenizer, 32) == [97, first, second, 98]
    plain = load_run(home / "runs/gpt2").tokenizer
    assert encode_prompt("a[MASK]", plain, 32) == [*b"a[MASK]"], "to others it is text"


def test_an_answer_by_beams(say):
    words = ["--source", "abc", "--max-new-tokens", "6", "--json"]
    [greedy] = rows(say(*words, run="bart"))
    [found] = rows(say(*words, "--beams", "4", "--length-penalty", "0", run="bart"))
    assert sum(found["logprobs"]) >= sum(greedy["logprobs"])
    assert say("--prompt", "abc", "--max-new-tokens", "6", "--json", run="bart") == say(*words, run="bart")


def test_a_decoder_that_answers_is_asked_as_in_training(say, monkeypatch):
    asked = []
    monkeypatch.setattr(sample, "steps", lambda model, prompts, **rest: asked.append(prompts) or iter(()))
    say("--prompt", "abc", run="llama")
    say("--prompt", "abc", run="gpt2")
    start = load_run("runs/llama").tokenizer.specials["start"]
    assert asked == [[[*b"abc", start]], [[*b"abc"]]]


def test_a_long_prompt_keeps_its_newest_part(say):
    long, usual = "0123456789" * 4, ["--max-new-tokens", "5", "--json"]
    [slid], [short] = (
        rows(say("--prompt", long, "--slide", *usual)),
        rows(say("--prompt", long[-32:], *usual)),
    )
    assert slid["ids"] == short["ids"] and slid["prompt"] == long


@pytest.mark.parametrize("model", FAMILIES)
def test_a_map_of_attention(say, model):
    words = ["--prompt", "a$ [MASK]\x00☃", "--attention-map", "maps.png"]
    words += [] if model == "bert" else ["--max-new-tokens", "4"]
    Path("maps.png").unlink(missing_ok=True)
    say(*words, "--precision", "bf16", run=model)
    assert Path("maps.png").read_bytes().startswith(b"\x89PNG")
    net = load_run(f"runs/{model}").model
    texts = {"tokens": [1, 2, 3]} | ({"source": [4, 5, 6, 7]} if net.kind == "encoder_decoder" else {})
    found = attention_maps(net, texts)
    assert len(found) == (6 if net.kind == "encoder_decoder" else 2)
    for layer in found:
        assert layer.weights_HTS.shape[1:] == (len(layer.asking), len(layer.asked))
        torch.testing.assert_close(layer.weights_HTS.sum(-1), torch.ones(layer.weights_HTS.shape[:2]))
    cross = [(layer.asking, layer.asked) for layer in found if layer.name.endswith("to source")]
    assert cross == ([([1, 2, 3], [4, 5, 6, 7])] * 2 if "source" in texts else [])


@pytest.mark.parametrize(("n", "every"), [(48, 1), (49, 2), (130, 3)])
def test_a_map_of_many_tokens_names_some_of_them(n, every):
    ticks, names = [], [str(i) for i in range(n)]
    name_ticks(lambda places, named, **rest: ticks.append((list(places), named)), names, 0)
    assert ticks == [(list(range(n))[::every], [repr(name) for name in names[::every]])]


def test_a_picture_that_is_refused_leaves_no_file(say):
    Path("old.png").write_bytes(b"old")
    for name in ("new.png", "old.png"):
        code, _ = say("--prompt", "a", "--attention-map", name, "--temperature", "-1")
        assert code == 2
    assert not Path("new.png").exists() and Path("old.png").read_bytes() == b"old"


def test_weights_are_cast_once(say, monkeypatch):
    seen, usual = [], sample.steps

    def spy(model, *rest, **more):
        seen.append({parameter.dtype for parameter in model.parameters()})
        return usual(model, *rest, **more)

    monkeypatch.setattr(sample, "steps", spy)
    for model in ("gpt2", "deepseek", "t5"):
        assert say("--prompt", "line", "--precision", "bf16", "--max-new-tokens", "3", run=model)
    assert seen == [{torch.bfloat16}] * 3


def test_the_newest_run_is_the_default(home, say):
    newest = max(home.glob("runs/*/checkpoints/latest"), key=lambda path: path.stat().st_mtime_ns).parents[1]
    assert newest_run(home / "runs") == newest == home / "runs/llama"
    swept = home / "runs/sweep-1/one/checkpoints/latest"
    swept.parent.mkdir(parents=True)
    swept.write_text("step-00000001\n")
    assert newest_run(home / "runs") == home / "runs/sweep-1/one"
    swept.unlink()
    words = ["--prompt", "abc", "--max-new-tokens", "4"]
    assert say(*words, run=None) == say(*words, run="llama")


def test_without_a_run_there_is_one_sentence(tmp_path, say, monkeypatch):
    monkeypatch.chdir(tmp_path)
    code, sentence = say("--prompt", "a", run=None)
    assert (
        code == 4
        and "there is no run with a checkpoint in runs/: train one first: python train.py" in sentence
    )


WRONG = [
    ("gpt2", ["--prompt", ""], "the prompt is empty; expected at least one character"),
    (
        "gpt2",
        ["--prompt", "x" * 33],
        "the prompt has 33 tokens and the model's context is 32: shorten it, or",
    ),
    ("gpt2", ["--prompt", "a", "--temperature", "-1"], "temperature is -1.0; expected a number from 0 on"),
    ("gpt2", ["--prompt", "a", "--temperature", "nan"], "temperature is nan; expected a number from 0 on"),
    ("gpt2", ["--prompt", "a", "--temperature", "hot"], "--temperature: invalid float value: 'hot'"),
    ("gpt2", ["--prompt", "a", "--top-k", "0"], "top_k is 0; expected a whole number from 1 to 257"),
    ("gpt2", ["--prompt", "a", "--top-k", "258"], "top_k is 258; expected"),
    ("gpt2", ["--prompt", "a", "--top-p", "0"], "top_p is 0.0; expected a number above 0 and up to 1"),
    ("gpt2", ["--prompt", "a", "--top-p", "1.1"], "top_p is 1.1; expected"),
    ("gpt2", ["--prompt", "a", "--min-p", "2"], "min_p is 2.0; expected"),
    ("gpt2", ["--prompt", "a", "--repetition-penalty", "0"], "repetition_penalty is 0.0; expected"),
    ("gpt2", ["--prompt", "a", "--max-new-tokens", "0"], "max_new_tokens must be a whole number from 1"),
    ("gpt2", ["--prompt", "a", "--max-new-tokens", "1" + 9 * "0"], "to 1,000,000 and is 1000000000"),
    ("gpt2", ["--prompt", "a", "--n", "0"], "--n is 0; expected a whole number from 1 to 1000"),
    ("gpt2", ["--prompt", "a", "--seed", "-1"], "seed is -1; expected a whole number from 0 on"),
    ("gpt2", ["--prompt", "a", "--stop", ""], "--stop is empty"),
    ("gpt2", ["--prompt", "a", "--temperature", "0", "--top-k", "5"], "--top-k is about draws"),
    ("gpt2", ["--prompt", "a", "--temperature", "0", "--n", "2"], "--n is about draws"),
    ("gpt2", ["--prompt", "a", "--temperature", "0", "--seed", "2"], "--seed is about draws"),
    (
        "bart",
        ["--prompt", "a", "--top-p", "0.5"],
        "--top-p is about draws, and temperature 0 takes the likel",
    ),
    (
        "gpt2",
        ["--prompt", "a", "--beams", "2"],
        "--beams goes with an encoder-decoder; this run is a decoder",
    ),
    (
        "gpt2",
        ["--source", "a"],
        "--source is answered by an encoder-decoder; this run is a decoder: give --pr",
    ),
    ("gpt2", ["--prompt", "a", "--length-penalty", "2"], "--length-penalty goes with --beams"),
    ("bart", ["--prompt", "a", "--beams", "0"], "beams is 0; expected a whole number from 1"),
    (
        "bart",
        ["--prompt", "a", "--beams", "2", "--temperature", "1"],
        "--temperature does not go with --beams",
    ),
    ("bart", ["--prompt", "a", "--beams", "2", "--n", "2"], "--n does not go with --beams"),
    ("bart", ["--prompt", "a", "--beams", "2", "--top-k", "2"], "--top-k does not go with --beams"),
    ("bart", ["--prompt", "a", "--beams", "2", "--length-penalty", "nan"], "length_penalty is nan; expected"),
    ("bart", ["--source", "a", "--prompt", "b"], "--prompt: not allowed with argument --source"),
    ("bert", ["--prompt", "a [MASK]", "--temperature", "1"], "--temperature is for models that write"),
    ("bert", ["--prompt", "a [MASK]", "--max-new-tokens", "1"], "--max-new-tokens is for models that write"),
    ("bert", ["--source", "a [MASK]"], "--source is answered by an encoder-decoder; this run is an encoder"),
    ("bert", ["--prompt", "a"], r"an encoder fills in [MASK], and there is none in 'a'"),
    ("t5", ["--source", "[MASK]" * 9], "the prompt has 9 [MASK]; this run has learned to fill in up to"),
    ("gpt2", ["--file", "none.txt"], "--file none.txt cannot be read (No such file or directory)"),
    ("gpt2", ["--file", "latin.txt"], "latin.txt is not UTF-8: byte 0xe9 at offset 2"),
    ("gpt2", ["--file", "blank.txt"], "--file blank.txt has no prompt in it; each line is one"),
    ("gpt2", [], "the prompt is empty"),  # and so is stdin
    ("gpt2", ["--prompt", "a\udcff"], "the prompt is not UTF-8"),
    (
        "gpt2",
        ["--prompt", "a", "--checkpoint", "first"],
        "the checkpoint is 'first'; choose latest, best or a s",
    ),
    ("gpt2", ["--prompt", "a", "--device", "tpu"], "device is 'tpu'; choose one of"),
    ("gpt2", ["--prompt", "a", "--precision", "fp8"], "precision is 'fp8'; choose one of"),
    ("gpt2", ["--prompt", "a", "--tempersture", "1"], "unrecognized arguments: --tempersture 1"),
    (
        "gpt2",
        ["--prompt", "a", "--attention-map", "m.txt"],
        "expected a name that ends in .png, .pdf or .svg",
    ),
    ("gpt2", ["--prompt", "a", "--attention-map", "none/m.png"], "there is no such folder"),
    ("gpt2", ["--prompt", "a", "--attention-map", "/proc/m.png"], "/proc/m.png cannot be written ("),
    (
        "gpt2",
        ["--prompt", "a", "--prompt", "b", "--attention-map", "m.png"],
        "--attention-map draws one text",
    ),
    ("gpt2", ["--prompt", "a", "--device", "cpu:foo"], "device is 'cpu:foo'; choose one of"),
    ("gpt2", ["--prompt", "a", "--json", "--no-stream"], "--no-stream is for texts that stream: with --json"),
    ("bert", ["--prompt", "a [MASK]", "--no-stream"], "--no-stream is for texts that stream"),
    (
        "bert",
        ["--prompt", f"a [MASK]{32 * 'x'}", "--slide"],
        "the newest 32 tokens and loses 1 [MASK]: s",
    ),
    ("bert", ["--prompt", f"[MASK]{31 * 'x'}[MASK]", "--slide"], "tokens and loses 1 [MASK]"),
    ("t5", ["--source", f"a [MASK]{32 * 'x'}", "--slide"], "tokens and loses 1 [MASK]"),
    (
        "gpt2",
        ["--prompt", "--json"],
        "--prompt: expected one argument; a text that looks like an option",
    ),
    ("gpt2", ["--prompt", "a", "--attention-map", "m.png", "--n", "2"], "--attention-map draws one text"),
]


@pytest.mark.parametrize(("model", "words", "sentence"), WRONG, ids=lambda value: "")
def test_what_is_wrong_is_said_in_a_sentence(say, model, words, sentence):
    Path("latin.txt").write_bytes(b"na\xefve".replace(b"\xef", b"\xe9"))
    Path("blank.txt").write_text("\n \n")
    code, said = say(*words, run=model)
    assert code == 2 and sentence in said, said


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--run", "runs/none"], "runs/none is not the folder of a run: it has no config.yaml"),
        (
            ["--run", "runs/gpt2", "--checkpoint", "7"],
            "has no checkpoint 'step-00000007'; it has step-00000003",
        ),
    ],
)
def test_what_is_missing_is_a_matter_of_checkpoints(say, words, sentence):
    code, said = say("--prompt", "a", *words, run=None)
    assert code == 4 and sentence in said


def test_a_terminal_without_a_prompt(say, monkeypatch):
    monkeypatch.setattr(io, "TextIOWrapper", Keyboard)
    code, said = say()
    assert code == 2 and "there is no prompt: give --prompt, --file or --interactive" in said


class Keyboard(io.TextIOWrapper):
    def isatty(self):
        return True


def test_weights_that_are_no_numbers(say, monkeypatch):
    usual = sample.open_run

    def broken(*given):
        opened = usual(*given)
        opened.model.head.map.weight.data.fill_(torch.nan)
        return opened

    monkeypatch.setattr(sample, "open_run", broken)
    code, said = say("--prompt", "a")
    assert code == 5 and "the model's scores are not finite numbers" in said


def test_from_a_shell(home):
    """Bytes that are no text, and a reader that leaves early."""
    python = [sys.executable, str(ROOT / "sample.py"), "--run", "runs/gpt2"]
    done = subprocess.run([*python, "--prompt", b"a\xff"], cwd=home, capture_output=True)
    assert done.returncode == 2 and done.stderr.decode().endswith("error: the prompt is not UTF-8\n")
    reader = f"'{sys.executable}' '{ROOT}/sample.py' --run runs/gpt2 --prompt a | head -c 1"
    shell = ["bash", "-c", f"{reader}; echo ${{PIPESTATUS[0]}}"]
    written = subprocess.run(shell, cwd=home, capture_output=True)
    assert written.stdout == b"a0\n" and b"Traceback" not in written.stderr


def test_streams_that_are_closed(home):
    """They lead nowhere; what is wrong is told by the exit code all the same."""
    python = f"'{sys.executable}' '{ROOT}/sample.py' --run runs/gpt2 --max-new-tokens 2"
    runs = {
        f"{python} --prompt a <&-": b"0",
        f"{python} --interactive <&-": b"0",
        f"{python} <&-": b"2",
        f"{python} --prompt a >&-": b"0",
        f"{python} --prompt a 2>&-": b"0",
        f"{python} --prompt '' 2>&- >&-": b"2",
    }
    done = subprocess.run(
        ["bash", "-c", "; ".join(f"{run} 3>&- ; echo $? >&2" for run in runs)], cwd=home, capture_output=True
    )
    assert b"Traceback" not in done.stderr
    assert [line for line in done.stderr.split() if line.isdigit()] == list(runs.values())


def test_where_an_error_came_from(home, monkeypatch, capsys):
    monkeypatch.chdir(home)
    for words, told in (([], False), (["--debug"], True)):
        assert run_command(sample.main, ["--run", "runs/gpt2", "--prompt", "", *words]) == 2
        assert ("Traceback" in capsys.readouterr().err) == told
