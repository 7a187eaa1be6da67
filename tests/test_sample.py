"""Sampling from checkpoints of every family: what goes in, what is printed, what is refused."""

import io
import json
import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import sample
from configs.cli import run_command
from configs.compose import compose
from data.tokenizers.tokenizer import NO_TEMPLATE, CharTokenizer
from model.attention_maps import draw_maps, name_ticks
from model.checkpoint.files import newest_run
from model.checkpoint.load import load_run
from model.generate.options import make_parser, parse_options
from model.generate.prompt import encode_prompt
from tests.parts import ROOT
from train import main as train
from training.sweep import launch

TEXT = "".join(f"line {i} of a text, don't {i * i}\n" for i in range(400))
SHORT = [
    "size=tiny",
    "tokenizer=byte",
    "train.steps=3",
    "train.batch_size=4",
    "eval.max_examples=2",
]
SHORT += ["precision=fp32", "model.context_length=32"]
BOOK, PAIRS = ["data=text", "data.path=book.txt"], ["data=synthetic", "data.size=200"]
FAMILIES = {"gpt2": BOOK, "deepseek": BOOK, "bert": BOOK, "t5": BOOK, "bart": PAIRS, "llama": PAIRS}


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
def run(home, monkeypatch, capsys):
    """run(*args): stdout of the command, or (exit code, error)."""
    monkeypatch.chdir(home)

    def run(*args, name="gpt2", stdin=b""):
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin), encoding="utf-8"))
        capsys.readouterr()
        folder = ["--run", f"runs/{name}"] if name else []
        code = run_command(sample.main, ["--precision", "fp32", *folder, *args])
        printed = capsys.readouterr()
        assert "Traceback" not in printed.err
        errors = [line for line in printed.err.splitlines() if line.startswith("error: ")]
        return (code, errors[0]) if code and len(errors) == 1 else printed.out

    return run


@pytest.fixture
def terminal(run, monkeypatch):
    """The same on a terminal: (the pieces in which it is printed, all of it)."""

    def terminal(*args, **options):
        pieces, show = [], sample.show
        with monkeypatch.context() as patch:
            patch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
            patch.setattr(sample, "show", lambda text: (pieces.append(text), show(text)))
            return pieces, run(*args, **options)

    return terminal


@pytest.fixture
def rows(run):
    """The rows of --json."""
    return lambda *args, **options: list(
        map(json.loads, run(*args, "--json", **options).splitlines())
    )


@pytest.mark.parametrize("model", FAMILIES)
def test_every_family(rows, model):
    limit = [] if model == "bert" else ["--max-new-tokens", "6"]
    [row] = rows("--prompt", "line [MASK] of", *limit, name=model)
    assert set(row) == {"prompt", "text", "ids", "logprobs", "finish_reason"}
    assert row["prompt"] == "line [MASK] of" and len(row["ids"]) == len(row["logprobs"])
    assert row["finish_reason"] in ([None] if model == "bert" else ["eos", "length"])
    assert all(logprob < 0 for logprob in row["logprobs"])


def test_a_decoder_continues_the_prompt(run, rows):
    args = ["--prompt", "line 1", "--max-new-tokens", "12"]
    [row] = rows(*args)
    assert run(*args) == f"line 1{row['text']}\n"
    gpt2 = load_run("runs/gpt2")
    assert gpt2.tokenizer.decode(row["ids"]) == row["text"]
    text = torch.tensor([[*b"line 1", *row["ids"]]])
    logprobs = gpt2.model(text)[0, 5:-1].log_softmax(-1).gather(-1, text[0, 6:, None])[:, 0]
    assert row["logprobs"] == pytest.approx(logprobs.tolist(), abs=1e-4)


def test_a_decoder_trained_on_pairs_generates_a_target(run):
    """Its prompt is a source, by either name."""
    target = run("--source", "abc", "--max-new-tokens", "8", name="llama")
    assert target == run("--prompt", "abc", "--max-new-tokens", "8", name="llama")
    assert not target.startswith("abc")


def test_seeds(run):
    args = ["--prompt", "line", "--max-new-tokens", "20", "--n", "3"]
    first, again, other = run(*args), run(*args), run(*args, "--seed", "1")
    assert first == again != other
    samples = first.split("\n---\n")
    assert len(samples) == len(set(samples)) == 3
    assert run(*args[:-2]).removesuffix("\n") == samples[0]


def test_each_line_of_a_file_is_a_prompt_of_its_own(run, rows, monkeypatch):
    Path("prompts.txt").write_text("line 1\n\nan unlike one\r\nl\n", encoding="utf-8-sig")
    prompts, limits = (
        ["line 1", "an unlike one", "l"],
        ["--max-new-tokens", "40", "--n", "2"],
    )  # past 32
    batched = rows("--file", "prompts.txt", *limits)
    assert [row["prompt"] for row in batched] == [prompt for prompt in prompts for _ in "12"]
    alone = [row for prompt in prompts for row in rows("--prompt", prompt, *limits)]
    assert [row["ids"] for row in batched] == [row["ids"] for row in alone]
    assert batched[0]["logprobs"] == pytest.approx(alone[0]["logprobs"], abs=1e-4)
    several = rows(*(arg for prompt in prompts for arg in ("--prompt", prompt)), *limits)
    assert [row["ids"] for row in several] == [row["ids"] for row in alone]
    printed = run("--file", "prompts.txt", *limits)
    monkeypatch.setattr(sample, "MAX_BATCH", 4)
    assert run("--file", "prompts.txt", *limits) == printed and printed.count("---\n") == 5


def test_stdin_is_one_prompt(run):
    """CRLF is read as a line end, and a byte order mark is dropped."""
    limit = ["--max-new-tokens", "5"]
    assert run(*limit, stdin="a\nnaïve\n".encode()) == run("--prompt", "a\nnaïve", *limit)
    expected = run("--prompt", "a\nb", *limit)
    assert run(*limit, stdin=b"a\r\nb\r\n") == run(*limit, stdin=b"\xef\xbb\xbfa\nb") == expected
    assert run("--interactive", *limit, stdin=b"\xef\xbb\xbfa\r\n") == run("--prompt", "a", *limit)


@pytest.mark.parametrize("text", ["-x", "--", "-", "-1", "a b", "", "--run=", "--prompt=a"])
def test_a_text_may_begin_with_a_dash(text):
    assert parse_options([f"--prompt={text}", f"--stop={text}"]).prompt == [text]
    if not text.startswith(("--r", "--p")):
        options = parse_options(["--prompt", text, "--stop", text, f"--stop={text}", "--n", "2"])
        assert (options.prompt, options.stop, options.n) == ([text], [text, text], 2)


def test_a_stop_string_that_cannot_be_generated(run, monkeypatch):
    chars = CharTokenizer("".join(map(chr, range(256))), {"end": 256})
    monkeypatch.setattr(sample, "load_run", lambda *args: load_run(*args)._replace(tokenizer=chars))
    code, error = run("--prompt", "a", "--stop", "a\u2603")
    assert code == 2 and "--stop 'a\u2603' can never be generated: " in error


def test_a_stop_string(rows):
    args = ["--prompt", "line", "--max-new-tokens", "30"]
    [full] = rows(*args)
    stop = full["text"][10:12]
    [row] = rows(*args, "--stop", "never there", "--stop", stop)
    assert row["finish_reason"] == "stop" and full["finish_reason"] == "length"
    assert row["text"] == full["text"][: full["text"].index(stop)]
    assert row["ids"] == full["ids"][: len(row["ids"])] and len(row["ids"]) < 30


def test_interactive(run):
    # the second is empty, the third too long, the fourth not UTF-8
    stdin = f"line\n\n{40 * 'x'}\nna".encode() + b"\xefve\nof\n"
    expected = [run("--prompt", prompt, "--max-new-tokens", "5") for prompt in ("line", "of")]
    assert run("--interactive", "--max-new-tokens", "5", stdin=stdin) == "".join(expected)


def interrupt(*args):
    raise KeyboardInterrupt


def test_an_interrupt_ends_one_prompt(run, terminal, monkeypatch):
    monkeypatch.setattr(sample, "generate_batch", interrupt)
    assert run("--interactive", stdin=b"line\nof\n") == "\n\n"
    assert terminal("--prompt", "line") == ([], "\n"), "the shell's prompt begins on its own line"
    assert run("--prompt", "line") == ""


@pytest.mark.parametrize("stdin", [b"line\n", b""])
def test_interactive_refuses_options_at_once(run, stdin):
    for model, args in {
        "gpt2": ["--top-k", "2", "--temperature", "0"],
        "bart": ["--beams", "0"],
    }.items():
        code, error = run("--interactive", *args, stdin=stdin, name=model)
        assert code == 2 and args[0] in error


def test_a_terminal_shows_each_token(terminal):
    """Control characters, which it would act on, become escapes."""
    args = ["--prompt", "a\n\t☃\x1b[2J\r\x9b", "--max-new-tokens", "9", "--temperature", "3"]
    pieces, printed = terminal(*args)
    assert len(pieces) == 11 and pieces[0] == args[1]
    assert printed.startswith("a\n\t☃\\x1b[2J\\r\\x9b") and "\x1b" not in printed
    at_once, same = terminal(*args, "--no-stream")
    assert len(at_once) == 1 and same == printed
    assert len(terminal(*args, "--n", "2")[0]) == 2


def test_json_on_a_terminal_is_ascii(terminal):
    _, line = terminal("--prompt", "☃\x9b", "--json", "--max-new-tokens", "1")
    assert line.isascii() and json.loads(line)["prompt"] == "☃\x9b"


def test_masks_are_filled(run, rows, monkeypatch):
    shown = run("--prompt", "li[MASK]e [MASK]", name="bert").splitlines()
    bert, mask = load_run("runs/bert"), 257
    probs, best = bert.model(torch.tensor([[*b"li", mask, *b"e ", mask]]))[0, 2].softmax(-1).topk(5)
    name = bert.tokenizer.decode_with_specials
    top = (f"{name([i])!r} {p:.3f}" for i, p in zip(best.tolist(), probs, strict=True))
    assert len(shown) == 3 and shown[1] == f"  [MASK] 1: {', '.join(top)}"
    assert shown[2].startswith("  [MASK] 2: ")
    Path("masks.txt").write_text("li[MASK]e [MASK]\n[MASK]e\n")
    [row, short] = rows("--file", "masks.txt", name="bert")
    assert row["ids"][0] == best[0] and row["logprobs"][0] == pytest.approx(
        probs[0].log().item(), abs=1e-4
    )
    assert row["text"] == shown[0] and len(short["ids"]) == 1
    monkeypatch.setattr(sample, "MAX_BATCH", 1)
    alone = rows("--file", "masks.txt", name="bert")
    assert [row["ids"] for row in alone] == [row["ids"], short["ids"]]
    assert short["logprobs"] == pytest.approx(alone[1]["logprobs"], abs=1e-5)


def test_masks_of_a_source_are_sentinels(home):
    tokenizer = load_run(home / "runs/t5").tokenizer
    first, second = (tokenizer.specials[f"sentinel_{n}"] for n in (0, 1))
    assert encode_prompt("a[MASK][MASK]b", tokenizer, 32, False, NO_TEMPLATE) == [
        97,
        first,
        second,
        98,
    ]
    decoder = load_run(home / "runs/gpt2").tokenizer
    assert encode_prompt("a[MASK]", decoder, 32, False, NO_TEMPLATE) == [*b"a[MASK]"], (
        "to others it is text"
    )


def test_beam_search(rows):
    args = ["--source", "abc", "--max-new-tokens", "6"]
    [greedy] = rows(*args, name="bart")
    [best] = rows(*args, "--beams", "4", "--length-penalty", "0", name="bart")
    assert sum(best["logprobs"]) >= sum(greedy["logprobs"])
    assert rows("--prompt", *args[1:], name="bart") == [greedy]


def test_the_model_and_the_prompt_of_a_decoder(run, monkeypatch):
    """The weights are cast once, and training on pairs puts a start token behind the source."""
    calls = []

    def decode(model, prompts, **options):
        calls.append((prompts, {parameter.dtype for parameter in model.parameters()}))
        yield from ()

    monkeypatch.setattr(sample, "decode", decode)
    run("--prompt", "abc", "--precision", "bf16", name="llama")
    run("--prompt", "abc", name="gpt2")
    start = load_run("runs/llama").tokenizer.specials["start"]
    assert calls == [([[*b"abc", start]], {torch.bfloat16}), ([[*b"abc"]], {torch.float32})]


def test_slide_truncates_on_the_left(rows):
    long, limit = "0123456789" * 4, ["--max-new-tokens", "5"]
    [slid], [short] = (
        rows("--prompt", long, "--slide", *limit),
        rows("--prompt", long[-32:], *limit),
    )
    assert slid["ids"] == short["ids"] and slid["prompt"] == long


@pytest.mark.parametrize("model", ["deepseek", "bert", "t5"])
def test_attention_maps(run, model, monkeypatch):
    shown = []
    monkeypatch.setattr(
        sample, "draw_maps", lambda maps, *args: shown.extend(maps) or draw_maps(maps, *args)
    )
    args = ["--prompt", "a$ [MASK]\x00☃", "--attention-map", "maps.png", "--precision", "bf16"]
    Path("maps.png").unlink(missing_ok=True)
    run(*args, *([] if model == "bert" else ["--max-new-tokens", "4"]), name=model)
    assert Path("maps.png").read_bytes().startswith(b"\x89PNG")
    names = {
        "t5": [
            "encoder 1",
            "encoder 2",
            "decoder 1",
            "decoder 1 to source",
            "decoder 2",
            "decoder 2 to source",
        ]
    }
    assert [layer.name for layer in shown] == names.get(model, ["layer 1", "layer 2"])


@pytest.mark.parametrize(("n", "every"), [(48, 1), (49, 2), (130, 3)])
def test_a_map_of_many_tokens_labels_some_of_them(n, every):
    ticks, names = [], [str(i) for i in range(n)]
    name_ticks(lambda places, labels, **options: ticks.append((list(places), labels)), names, 0)
    assert ticks == [(list(range(n))[::every], [repr(name) for name in names[::every]])]


def test_the_newest_run_is_the_default(home, run):
    args = ["--prompt", "abc", "--max-new-tokens", "4"]
    assert run(*args, name=None) == run(*args, name="llama"), "the last of FAMILIES"
    swept = home / "runs/sweep-1/one/checkpoints/latest"
    swept.parent.mkdir(parents=True)
    swept.write_text("step-00000001\n")
    assert newest_run(home / "runs") == home / "runs/sweep-1/one"
    swept.unlink()


def test_missing_checkpoints(tmp_path, run, monkeypatch):
    code, error = run("--prompt", "a", "--checkpoint", "7")
    assert code == 4 and "has no checkpoint 'step-00000007'; it has step-0" in error
    code, error = run("--prompt", "a", name="nowhere")
    assert code == 4 and error.endswith("no such run: runs/nowhere")
    for place in ("gpt2", "runs/gtp2"):
        code, error = run("--prompt", "a", "--run", place, name=None)
        assert code == 4 and error.endswith(f"no such run: {place} (did you mean runs/gpt2?)")
    (tmp_path / "hf").mkdir()
    (tmp_path / "hf/config.json").write_text("{}")
    code, error = run("--prompt", "a", "--run", f"{tmp_path}/hf", name=None)
    assert code == 4 and "import it first: python -m model.hub import --from" in error
    monkeypatch.setattr(sample, "RUNS_DIR", tmp_path)
    code, error = run("--prompt", "a", name=None)
    assert code == 4 and "has no run with a checkpoint" in error


WRONG = [
    ("gpt2", "--prompt ''", "the prompt is empty"),
    (
        "gpt2",
        f"--prompt {'x' * 33}",
        "the prompt has 33 tokens; the context length is 32 (see --slide)",
    ),
    ("gpt2", "--prompt a --temperature nan", "--temperature is nan; expected a number at least 0"),
    ("gpt2", "--prompt a --top-k 258", "top_k is 258; the vocabulary size is 257"),
    ("gpt2", "--prompt a --max-new-tokens 1000000000", "an integer from 1 to 1,000,000"),
    ("gpt2", "--prompt a --n 0", "--n is 0; expected an integer from 1 to 1,000"),
    ("gpt2", "--prompt a --stop ''", "--stop is empty"),
    (
        "gpt2",
        "--prompt a --temperature 0 --top-k 5",
        "--top-k is only for sampling; this is greedy decoding",
    ),
    (
        "bart",
        "--prompt a --n 2",
        "--n is only for sampling; this is greedy decoding (temperature 0) with",
    ),
    (
        "gpt2",
        "--source a",
        "is only for an encoder-decoder or a decoder trained on pairs; this is sampling",
    ),
    (
        "gpt2",
        "--prompt a --length-penalty 2",
        "--length-penalty is only for beam search; this is sampling",
    ),
    (
        "bart",
        "--prompt a --beams 2 --temperature 1",
        "--temperature is only for sampling or greedy decoding",
    ),
    (
        "bart",
        "--prompt a --beams 2 --length-penalty nan",
        "--length-penalty is nan; expected a number",
    ),
    ("bart", "--source a --prompt b", "--prompt: not allowed with argument --source"),
    ("bert", "--prompt [MASK] --max-new-tokens 1", "--max-new-tokens is only for sampling or"),
    ("bert", "--prompt a", "an encoder fills in [MASK]; there is no [MASK] in 'a'"),
    (
        "bert",
        f"--slide --prompt [MASK]{32 * 'x'}",
        "the last 32 tokens and loses 1 [MASK]: shorten",
    ),
    ("t5", f"--source {'[MASK]' * 9}", "the prompt has 9 [MASK]; this run was trained with up to"),
    ("gpt2", "--file none.txt", "--file none.txt cannot be read (no such file or directory)"),
    ("gpt2", "--file latin.txt", "--file latin.txt cannot be read (not UTF-8 at byte 2)"),
    ("gpt2", "--file blank.txt", "--file blank.txt has no prompt; each line is one"),
    ("gpt2", "--prompt a\udcff", "the prompt is not UTF-8"),
    (
        "gpt2",
        "--prompt a --checkpoint first",
        "the checkpoint is 'first'; choose latest, best or a s",
    ),
    ("gpt2", "--prompt a --precision fp8", "precision is 'fp8'; choose one of"),
    (
        "gpt2",
        "--prompt a --tempersture 1",
        "unknown argument '--tempersture'; did you mean --temperature?",
    ),
    (
        "gpt2",
        "--max_new_tokens=5",
        "unknown argument '--max_new_tokens=5'; did you mean --max-new-tokens?",
    ),
    ("gpt2", "--out_dir=out", "did you mean --run?"),
    ("gpt2", "--frobnicate", "unknown argument '--frobnicate'; see --help"),
    ("gpt2", "'def '", "unknown argument 'def '; did you mean --prompt 'def '?"),
    ("gpt2", "runs", "unknown argument 'runs'; did you mean --run 'runs'?"),
    (
        "gpt2",
        "--prompt --json",
        "--prompt: expected one argument; write a text that looks like an option as",
    ),
    ("gpt2", "--prompt a --json --no-stream", "--no-stream has no effect with --json"),
    ("gpt2", "--prompt a --attention-map m.txt", "expected a file name with .png, .pdf or .svg"),
    (
        "gpt2",
        "--prompt a --attention-map none/m.png",
        "--attention-map none/m.png cannot be written",
    ),
    ("gpt2", "--prompt a --attention-map m.png --n 2", "--attention-map needs one text"),
]


@pytest.mark.parametrize(("model", "args", "sentence"), WRONG, ids=lambda value: "")
def test_errors(run, model, args, sentence):
    Path("latin.txt").write_bytes(b"na\xe9ve")
    Path("blank.txt").write_text("\n \n")
    code, error = run(*shlex.split(args), name=model)
    assert code == 2 and sentence in error, error


def test_a_terminal_without_a_prompt(run, monkeypatch):
    terminal = type("Terminal", (io.TextIOWrapper,), {"isatty": lambda stream: True})
    monkeypatch.setattr(io, "TextIOWrapper", terminal)
    code, error = run()
    assert code == 2 and "no prompt: give --prompt, --file or --interactive" in error


def test_help_fits_one_screen():
    lines = make_parser().format_help().splitlines()
    assert len(lines) <= 40 and max(map(len, lines)) <= 100


def test_logits_that_are_not_finite(run, monkeypatch):
    gpt2 = load_run("runs/gpt2")
    gpt2.model.head.map.weight.data.fill_(torch.nan)
    monkeypatch.setattr(sample, "load_run", lambda *args: gpt2)
    code, error = run("--prompt", "a")
    assert code == 5 and "logits are NaN or infinite" in error


def test_from_a_shell(home):
    """Bytes that are not text, a reader that leaves early, and standard streams that are closed."""
    python = f"'{sys.executable}' '{ROOT}/sample.py' --run runs/gpt2 --max-new-tokens 2"
    script = f"{python} --prompt a <&- 2>&- | head -c 1; (exit ${{PIPESTATUS[0]}}) || exit 1"
    script += f"; {python} --prompt $'a\\xff' >&-"
    done = subprocess.run(["bash", "-c", script], cwd=home, capture_output=True)
    assert done.returncode == 2 and done.stdout == b"a"
    assert (
        done.stderr.endswith(b"error: the prompt is not UTF-8\n")
        and b"Traceback" not in done.stderr
    )


def test_debug_shows_the_traceback(home, monkeypatch, capsys):
    monkeypatch.chdir(home)
    for args, shown in (([], False), (["--debug"], True)):
        assert run_command(sample.main, ["--run", "runs/gpt2", "--prompt", "", *args]) == 2
        assert ("Traceback" in capsys.readouterr().err) == shown
