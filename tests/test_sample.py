"""Sampling from checkpoints of every family: what goes in, what is printed, what is refused."""

import io
import json
import math
import shlex
import sys
from pathlib import Path
from unittest.mock import Mock

import pytest
import torch

import sample
from configs.cli import run_command
from configs.compose import compose
from data.tokenizers.plain import ByteTokenizer
from data.tokenizers.tokenizer import assign_ids
from model.checkpoint import load_run
from model.explain import explain
from model.generate.decode import DecodeStep
from model.generate.score import score
from model.generate.text import encode_prompt
from model.hub.__main__ import write_run
from model.transformer import Decoder, build_model
from tests.parts import randomize

# {model: (objective, special tokens)}
FAMILIES = {
    "gpt2": ("next_token", ["end"]),
    "deepseek": ("next_token", ["end"]),
    "bert": ("masked", ["end", "mask"]),
    "t5": ("span", ["end", "start", *(f"sentinel_{n}" for n in range(8))]),
    "bart": ("pairs", ["end", "pad", "start"]),
    "llama": ("pairs", ["end", "pad", "start"]),
}


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    """A folder with a run of each family, with random weights."""
    home = tmp_path_factory.mktemp("home")
    (home / "runs").mkdir()
    for name, (objective, specials) in FAMILIES.items():
        options = f"model={name} objective={objective} model.context_length=32"
        config = compose([*options.split(), "size=tiny", "tokenizer=byte"])
        tokenizer = ByteTokenizer(assign_ids(specials, 256))
        model = randomize(build_model(config.model, tokenizer.vocab_size))
        if name == "bert":  # to which special tokens are the likeliest
            model.head.map.bias.data[256:] = 9
        write_run(home / "runs" / name, config, model, tokenizer, "for tests")
    return home


@pytest.fixture
def run(home, monkeypatch, capsys):
    """run(*args): stdout of the command, or (exit code, error)."""
    monkeypatch.chdir(home)

    def run(*args, name="gpt2", stdin=b""):
        monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(stdin), encoding="utf-8"))
        capsys.readouterr()
        folder = ["--run", f"runs/{name}"] if name else []
        code = run_command(lambda: sample.main(["--precision", "fp32", *folder, *args]))
        printed = capsys.readouterr()
        assert "Traceback" not in printed.err
        errors = [line for line in printed.err.splitlines() if line.startswith("error: ")]
        return (code, errors[0]) if code and len(errors) == 1 else printed.out

    return run


@pytest.fixture
def rows(run):
    """The rows of --json."""

    def rows(*args, **options):
        return list(map(json.loads, run(*args, "--json", **options).splitlines()))

    return rows


@pytest.fixture
def terminal(run, monkeypatch):
    """The same on a terminal: (the pieces in which it is printed, all of it)."""

    def terminal(*args):
        show = Mock(wraps=sample.show)
        with monkeypatch.context() as patch:
            patch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
            patch.setattr("sample.show", show)
            printed = run(*args)
        return [text for (text,), _ in show.call_args_list if text], printed

    return terminal


def limit(n, name="gpt2"):
    """No option of an encoder."""
    return [] if name == "bert" else ["--max-new-tokens", str(n)]


@pytest.mark.parametrize("prompt", ["line 1", ""])
def test_a_decoder_continues_the_prompt(run, rows, prompt):
    """Or begins a new text, after the end of another."""
    args = ["--prompt", prompt, *limit(12)]
    [row] = rows(*args)
    assert run(*args) == f"{prompt}{row['text']}\n"
    gpt2 = load_run("runs/gpt2")
    assert gpt2.tokenizer.decode(row["ids"]) == row["text"]
    before = list(prompt.encode()) or gpt2.tokenizer.end_ids
    logprobs = gpt2.model(torch.tensor([before + row["ids"]]))[0].log_softmax(-1)
    expected = logprobs[len(before) - 1 : -1].gather(1, torch.tensor(row["ids"])[:, None])
    assert row["logprobs"] == pytest.approx(expected.flatten().tolist(), abs=1e-4)


def test_scores(run, rows, terminal, monkeypatch):
    """The log-probabilities are those of sampling and of --explain; the text has their bits."""
    text = "a line é"
    ids = list(text.encode())
    [row] = rows("--prompt", text, "--score")
    gpt2 = load_run("runs/gpt2")
    page = explain(gpt2.model, gpt2.tokenizer, {"tokens": ids}, [])
    assert row["logprobs"] == pytest.approx(page["logprobs"], abs=1e-5)
    assert row["ids"] == ids[1:] and "".join(row["tokens"]) == text[1:]
    assert row["bits"] == pytest.approx(sum(row["logprobs"]) / -math.log(2))
    assert row["bits_per_byte"] == row["bits"] / len(ids[1:])

    printed = run("--prompt", text, "--score")
    *bits, total = [float(line[:8]) for line in printed.splitlines()]
    assert len(bits) == len(ids[1:]) and total == pytest.approx(sum(bits), abs=0.01)
    monkeypatch.setenv("TERM", "xterm")
    assert "\x1b[" in terminal("--prompt", text, "--score")[1]

    [sampled] = rows("--prompt", text, "--temperature", "0", *limit(9))
    logprobs = score(gpt2.model, ids + sampled["ids"])[0][-9:]
    assert logprobs == pytest.approx(sampled["logprobs"], abs=1e-5)


def test_seeds(run):
    args = ["--prompt", "line", *limit(20), "--n", "3"]
    first = run(*args)
    assert first == run(*args) != run(*args, "--seed", "1")
    samples = first.split("\n---\n")
    assert len(samples) == len(set(samples)) == 3
    assert run(*args[:-2]).removesuffix("\n") == samples[0]


def contents(rows):
    return [(row["prompt"], row["ids"]) for row in rows]


def test_each_line_of_a_file_is_a_prompt_of_its_own(run, rows, monkeypatch):
    """Past the context of 32, too."""
    Path("prompts.txt").write_text("line 1\n \r\nan unlike one\r\nl\n", encoding="utf-8-sig")
    options = [*limit(40), "--n", "2"]
    alone = []
    for prompt in ("line 1", " ", "an unlike one", "l"):
        alone += rows("--prompt", prompt, *options)
    assert contents(rows("--file", "prompts.txt", *options)) == contents(alone)
    printed = run("--file", "prompts.txt", *options)
    assert printed.count("---\n") == 7
    monkeypatch.setattr("sample.MAX_BATCH", 3)
    assert run("--file", "prompts.txt", *options) == printed


@pytest.mark.parametrize("name", FAMILIES)
def test_lines_of_a_file_and_of_the_output_correspond(run, rows, name):
    """An empty line begins a new text, or has no output."""
    Path("prompts.txt").write_text("a[MASK]\n\nb[MASK]\n\n")
    args = ["--file", "prompts.txt", *limit(3, name)]
    first, second, third, fourth = rows(*args, name=name)
    assert (first["prompt"], third["prompt"]) == ("a[MASK]", "b[MASK]")
    assert contents([second]) == contents([fourth])
    n, reason = (1, None) if name == "bert" else (3, "length")
    assert first["finish_reason"] == reason
    assert len(first["ids"]) == len(first["logprobs"]) == n
    assert max(first["logprobs"]) < 0
    if name in ("gpt2", "deepseek"):
        assert len(second["ids"]) == 3
    else:
        empty = {"prompt": "", "text": "", "ids": [], "logprobs": [], "finish_reason": None}
        assert second == empty
        assert run(*args, name=name).endswith("\n\n")


def test_stdin_is_one_prompt(run):
    """CRLF is read as a line end, and a byte order mark is dropped."""
    expected = run("--prompt", "a\nnaïve", *limit(5))
    for text in ("a\nnaïve\n", "a\r\nnaïve\r\n", "\ufeffa\nnaïve"):
        assert run(*limit(5), stdin=text.encode()) == expected


def test_an_architecture_generates_in_its_own_way(rows, monkeypatch):
    def generate(model, prompts, *, max_new_tokens, **options):
        for number in range(max_new_tokens):
            yield DecodeStep([97 + number] * len(prompts), [0.0] * len(prompts))

    monkeypatch.setattr(Decoder, "generate", generate, raising=False)
    assert rows("--prompt", "the", "--max-new-tokens", "3")[0]["text"] == "abc"


def test_a_stop_string(rows):
    args = ["--prompt", "line", *limit(30)]
    [full] = rows(*args)
    stop = full["text"][10:12]
    [row] = rows(*args, "--stop", "never there", "--stop", stop)
    assert (row["finish_reason"], full["finish_reason"]) == ("stop", "length")
    assert row["text"] == full["text"][: full["text"].index(stop)]
    assert row["ids"] == full["ids"][: len(row["ids"])]
    assert len(row["ids"]) < 30


def test_interactive(run):
    """The second prompt is too long: an error ends only its own."""
    stdin = f"line\n{40 * 'x'}\nof\n".encode()
    expected = [run("--prompt", prompt, *limit(5)) for prompt in ("line", "of")]
    assert run("--interactive", *limit(5), stdin=stdin) == "".join(expected)


def test_an_interrupt_ends_one_prompt(run, monkeypatch):
    monkeypatch.setattr(sample.Sampler, "generate", Mock(side_effect=KeyboardInterrupt))
    assert run("--interactive", stdin=b"line\nof\n") == "\n\n"
    assert run("--prompt", "line") == ""
    monkeypatch.setattr("builtins.input", Mock(side_effect=[KeyboardInterrupt, EOFError]))
    assert run("--interactive") == "\n", "one without a prompt ends nothing"


def test_a_terminal_shows_each_token(terminal):
    """Control characters, which it would act on, and marks of direction become escapes."""
    args = ["--prompt", "a\n\t☃\x1b[2J\r\x9b\x07\x7f\u202e\u2066", *limit(9), "--temperature", "3"]
    pieces, printed = terminal(*args)
    assert len(pieces) > 5
    assert pieces[0] == args[1]
    assert printed.startswith("a\n\t☃\\x1b[2J\\r\\x9b\\x07\\x7f\\u202e\\u2066")
    assert "\x1b" not in printed
    at_once, same = terminal(*args, "--no-stream")
    assert len(at_once) == 1
    assert same == printed
    _, second = terminal(*args, "--n", "2")[0]
    assert second.startswith(f"---\n{args[1]}")


def test_json_on_a_terminal_is_ascii(terminal):
    _, line = terminal("--prompt", "☃\x9b", "--json", *limit(1))
    assert line.isascii()
    assert json.loads(line)["prompt"] == "☃\x9b"


def test_masks_are_filled(run, rows, monkeypatch):
    """By ordinary tokens: a special one would not be text."""
    text = "li[MASK]e [MASK]"
    Path("masks.txt").write_text(f"{text}\n[MASK]e\n")
    batched = rows("--file", "masks.txt", name="bert")
    monkeypatch.setattr("sample.MAX_BATCH", 1)
    row, short = rows("--file", "masks.txt", name="bert")
    assert contents(batched) == contents([row, short])
    filled, first, second = run("--prompt", text, name="bert").splitlines()
    assert row["text"] == filled
    assert first.startswith("  [MASK] 1: ") and first.count(", ") == 4
    assert second.startswith("  [MASK] 2: ")

    bert = load_run("runs/bert")
    mask = bert.tokenizer.specials["mask"]
    logits = bert.model(torch.tensor([[*b"li", mask, *b"e ", mask]]))[0, 2]
    logprob, best = logits.log_softmax(-1)[:256].max(-1)
    assert row["ids"][0] == best
    assert row["logprobs"][0] == pytest.approx(logprob.item(), abs=1e-4)


def test_the_model_and_the_prompt_of_a_decoder(run, monkeypatch):
    """The weights are cast once, and training on pairs puts a start token behind the source."""
    decode = Mock(return_value=[])
    monkeypatch.setattr("model.generate.decode.decode", decode)
    start = load_run("runs/llama").tokenizer.specials["start"]
    for name, precision, dtype, after in (
        ("llama", "bf16", torch.bfloat16, [start]),
        ("gpt2", "fp32", torch.float32, []),
    ):
        run("--prompt", "abc", "--precision", precision, name=name)
        model, prompts = decode.call_args.args
        assert prompts == [[*b"abc", *after]]
        assert {parameter.dtype for parameter in model.parameters()} == {dtype}


def test_slide_truncates_on_the_left(rows):
    long = "0123456789" * 4
    [slid] = rows("--prompt", long, "--slide", *limit(5))
    [short] = rows("--prompt", long[-32:], *limit(5))
    assert contents([slid]) == [(long, short["ids"])]
    tokenizer = ByteTokenizer({"end": 256})
    assert encode_prompt("abc", tokenizer, 2, True, [[1], [2]]) == [1, 2], "all of it"


def test_the_newest_run_is_the_default(run):
    args = ["--prompt", "abc", *limit(4)]
    assert run(*args, name=None) == run("abc", *limit(4), name="llama"), "the last of FAMILIES"


WRONG = {  # {model and options: a part of the sentence}
    "gpt2 --prompt a --checkpoint 7": "has no checkpoint '7'; its steps are: 0",
    "nowhere --prompt a": "there is no folder runs/nowhere",
    "hf --prompt a": "no config.yaml; python -m model.hub import imports a Hugging",
    f"gpt2 --prompt {'x' * 33}": "33 tokens; the context length is 32 (see --slide)",
    "nowhere --prompt a --temperature nan": "temperature is nan; expected a number at least 0",
    "gpt2 --prompt a --stop ''": "--stop cannot be empty",
    "gpt2 --prompt a --n 0": "--n is 0; expected an integer at least 1",
    "gpt2 --prompt a --temperature 0 --top-k 5": "--top-k has no effect: greedy decoding",
    "gpt2 --source a": "--source has no effect: this model continues a --prompt",
    "bart --prompt a --beams 0": "beams is 0; expected an integer at least 1",
    "bart --prompt a --beams 2 --seed 1": "--seed has no effect: beam search does not sample",
    "bert --prompt [MASK] --stop a": "--stop has no effect: an encoder fills in [MASK]",
    "bart --source a --prompt b": "--prompt: not allowed with argument --source",
    "bert --prompt a": "an encoder fills in [MASK]; there is none in 'a'",
    "bert --prompt a --embed max": "--embed is 'max'; expected mean or first or auto",
    "bert --prompt= --embed mean": "the text is empty",
    "bert --prompt a --embed mean --n 2": "--n has no effect: --embed prints a vector",
    "gpt2 --prompt a --embed mean": "--embed needs an encoder; model.kind is decoder",
    "llama --prompt a --score": "--score needs a decoder that continues a text",
    "gpt2 --prompt a --score": "--score needs a text of two tokens, not 'a'",
    "gpt2 --prompt a --score --no-stream": "--no-stream has no effect: --score generates",
    "gpt2 --prompt a --score --seed 1": "--seed has no effect: --score generates nothing",
    "gpt2 --chat": "--chat needs a run of data=chat, or an import with a chat",
    f"t5 --source {'[MASK]' * 9}": "the prompt has 9 [MASK]; this run has 8",
    "gpt2 --file latin.txt": "'utf-8' codec can't decode byte 0xe9 in position 2",
    "gpt2 --prompt a\udcff": "'utf-8' codec can't encode character",
    "gpt2 --prompt a --max-new-tokens 0": "--max-new-tokens is 0; expected an integer at least 1",
    "gpt2 --prompt a --num_samples 1": "unknown option --num_samples (did you mean --n?); see",
    "gpt2 --prompt a b": "--prompt has no effect: 'b' is the prompt",
    "gpt2 --prompt --json": "--prompt: expected one argument",
    "gpt2 --prompt a --explain m.png": "--explain must end in .html",
    "gpt2 --prompt a --host b": "--host has no effect: it is for --serve",
    "gpt2 --serve 0 --seed 1": "--seed has no effect: a request to --serve has its own settings",
    "gpt2 --serve 99999": "port must be 0-65535",
    "gpt2 --prompt a --explain no/a.html": "--explain is no/a.html; there is no folder no",
}


@pytest.mark.parametrize("command", WRONG)
def test_errors(run, command):
    Path("latin.txt").write_bytes(b"na\xe9ve")
    Path("runs/hf").mkdir(exist_ok=True)
    name, *args = shlex.split(command)
    code, error = run(*args, name=name)
    is_missing = (name not in FAMILIES or "--checkpoint" in args) and "nan" not in args
    assert code == (4 if is_missing else 2)
    assert WRONG[command] in error


def test_a_terminal_without_a_prompt(run, monkeypatch):
    terminal = type("Terminal", (io.TextIOWrapper,), {"isatty": lambda stream: True})
    monkeypatch.setattr("io.TextIOWrapper", terminal)
    code, error = run()
    assert code == 2
    assert "no prompt: give --prompt, --file or --interactive" in error
