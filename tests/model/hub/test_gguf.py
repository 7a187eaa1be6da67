"""Files for llama.cpp hold the same model. It runs them, where llama-cpp-python is installed."""

import json

import pytest
import torch
from tokenizers import AddedToken, Tokenizer, pre_tokenizers, processors

from configs.errors import HubError
from model.hub.__main__ import import_run, main
from model.hub.convert import load_hf
from model.hub.gguf import SPLITS, export_gguf, warn_of_ids
from tests.data.test_huggingface import SAMPLE, byte_pairs
from tests.model.hub.hub_models import PLAIN, build_hf, edit_config, save
from tests.model.hub.test_hub_export import NARROW, build
from tests.model.hub.test_hub_tokenizer import CHAT, PROBES, TEXTS
from tests.parts import refused

gguf = pytest.importorskip("gguf")
LLAMA = "model=llama model.attention.head_dim=12"
MODELS = [
    "model=gpt2",
    f"{LLAMA} tokenizer=byte",
    "model=qwen2",
    f"{LLAMA} attention=gqa_qknorm",
    "model=smollm3 model.n_layers=5",
    "model=olmo2 model.head.tie_weights=true tokenizer=byte",
    f"model=gemma3 model.n_layers=7 {NARROW} model.position.rope_theta=500",
]
STRANGE = ["\0\1\x1b[31m\x7f", "\u2028\x85\x1c", "<|end|><|pad|> <|end|>x", " \n\n \r\n\t x  \n "]


def write(file, overrides, dtype="f32"):
    model, tokenizer = build(f"tokenizer=bpe {overrides}", ("end", "start", "pad"))
    export_gguf(model, tokenizer, file, None, dtype)
    return model.eval(), tokenizer


def run(file):
    reason = "llama-cpp-python is not installed"
    library = pytest.importorskip("llama_cpp", reason=reason)
    return library.Llama(str(file), logits_all=True, type_k=0, type_v=0, n_threads=1, verbose=False)


def its_logits(llama, ids):
    llama.reset()
    llama.eval(ids)
    return torch.tensor(llama.scores[: len(ids)])


def assert_same_ids(llama, tokenizer):
    for text in [*TEXTS[:-1], *PROBES, *STRANGE, SAMPLE]:
        assert llama.tokenize(text.encode(), add_bos=False) == tokenizer.encode(text).tolist()
    special = "".join(tokenizer.special_texts().values())
    ids = llama.tokenize(special.encode(), add_bos=False, special=True)
    assert ids == tokenizer.encode_specials(special)[0]
    assert llama.token_eos() == tokenizer.specials["end"]


@torch.no_grad()
@pytest.mark.parametrize("overrides", MODELS)
def test_llama_cpp_gives_the_same_logits_ids_and_text(overrides, tmp_path):
    file = tmp_path / "x.gguf"
    model, tokenizer = write(file, overrides)
    llama = run(file)
    assert_same_ids(llama, tokenizer)
    ids = torch.randint(tokenizer.vocab_size, (40,), generator=torch.Generator().manual_seed(0))
    difference = its_logits(llama, ids.tolist()) - model(ids[None])[0]
    # its GELU is a table in float16
    has_gelu = "gpt2" in overrides or "gemma" in overrides
    assert difference.abs().max() < (6e-3 if has_gelu else 1e-4)
    ours = theirs = ids[:4].tolist()
    for _ in range(12):
        theirs = [*theirs, int(its_logits(llama, theirs)[-1].argmax())]
        ours = [*ours, int(model(torch.tensor([ours]))[0, -1].argmax())]
    assert theirs == ours


@pytest.mark.parametrize("dtype, step", [("f32", 0), ("f16", 1e-3), ("q8_0", 1e-2)])
def test_the_weights_of_a_file(dtype, step, tmp_path):
    file = tmp_path / "x.gguf"
    model, _ = write(file, "model=llama attention=mha_nobias tokenizer=byte", dtype)
    assert list(tmp_path.iterdir()) == [file]
    written = {}
    for tensor in gguf.GGUFReader(file).tensors:
        kind = tensor.tensor_type
        assert kind.name == ("F32" if "norm" in tensor.name else dtype.upper())
        written[tensor.name] = torch.tensor(gguf.quants.dequantize(tensor.data, kind))
    weights = model.state_dict()
    assert len(written) == len(weights)
    pairs = torch.arange(32).view(4, 2, 4).transpose(1, 2).flatten()  # rope's, side by side
    queries = weights["stack.blocks.1.attention.query.weight"][pairs]
    torch.testing.assert_close(written["blk.1.attn_q.weight"], queries, rtol=step, atol=step)
    head = weights["head.map.weight"]
    torch.testing.assert_close(written["output.weight"], head, rtol=step, atol=step)


REFUSED = {
    "model=modern model.bigrams=null": "persimmon cannot be written as GGUF; .* or train model=llama .or gpt2",
    "model=llama attention=mha_qknorm model.attention.sliding_window=7": "window is 7; on",
    "model=gemma3 model.layers=[window,full]": "llama.cpp: model.layers is .* only null",
    "model=gpt2 ffn=relu": 'llama.cpp: model.ffn.kind is "relu"; only "gelu_tanh"',
    "model=llama position=rope_llama3": 'scaling.kind is "llama3"; only "none"',
    "model=olmo2 model.attention.head_dim=16": "head_dim is 16; only 8",
    "model=llama tokenizer=char": "llama.cpp has no such tokenizer; train with tokenizer=bpe",
}


@pytest.mark.parametrize("overrides", REFUSED)
def test_what_llama_cpp_does_not_have_is_refused(overrides, tmp_path):
    with refused(REFUSED[overrides], HubError):
        write(tmp_path / "x.gguf", overrides)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("name", SPLITS)
def test_an_imported_model(name, tmp_path):
    """Its special tokens, its template and its chat template are in the file."""
    first, end, _ = names = ["<|begin|>", "<|im_end|>", "<|stop|>"]
    backend = byte_pairs(SPLITS[name][-1], names)
    if name == "smollm":
        digits = pre_tokenizers.Digits(individual_digits=True)
        backend.pre_tokenizer = pre_tokenizers.Sequence([digits, backend.pre_tokenizer])
    backend.add_tokens([AddedToken("<think>", normalized=False)])
    backend.post_processor = processors.TemplateProcessing(f"{first} $A", None, [(first, 290)])
    model = build_hf("qwen3", bos_token_id=290, eos_token_id=[291, 292])
    settings = PLAIN | {"bos_token": first, "eos_token": end, "chat_template": CHAT}
    folder = save(model, tmp_path / "hf", backend, settings)
    edit_config(folder, _model_name_or_path="x")  # as transformers writes it

    run_folder = tmp_path / "run"
    import_run(folder, run_folder)
    file = tmp_path / "x.gguf"
    main(["export", "--run", str(run_folder), "--to", str(file)])
    fields = gguf.GGUFReader(file).fields
    found = {key: fields[f"tokenizer.{key}"].contents() for key in ("ggml.pre", "chat_template")}
    assert found == {"ggml.pre": name, "chat_template": CHAT}
    main(["export", "--run", str(run_folder), "--to", str(tmp_path / "back")])
    card = (tmp_path / "back" / "README.md").read_text("utf-8")
    assert f"imported from {folder}" in card and "License: " in card
    llama = run(file)
    assert_same_ids(llama, load_hf(folder)[1])
    assert llama.tokenize(b"a")[0] == 290
    assert llama._model.token_eot() == 292


def test_a_warning_names_what_changes_ids(tmp_path, capsys):
    write(tmp_path / "x.gguf", "model=llama")
    backend = byte_pairs(SPLITS["llama-bpe"][0], ["<|end|>"])
    warn_of_ids(backend, "llama-bpe")
    assert "warning" not in capsys.readouterr().err
    state = json.loads(backend.to_str())
    state["model"]["merges"].pop()
    state["added_tokens"][0]["lstrip"] = True
    warn_of_ids(Tokenizer.from_str(json.dumps(state)), "llama-bpe")
    errors = capsys.readouterr().err
    assert "applies merges in another way" in errors and "keeps spaces" in errors


def test_blocks_of_q8_0(tmp_path):
    with refused("--dtype q8_0: Can't quantize tensor with shape .*, 36", HubError):
        write(tmp_path / "x.gguf", "model=llama model.d_model=36 model.n_heads=2", "q8_0")
    assert not list(tmp_path.iterdir())


def test_what_is_written_depends_on_the_suffix(tmp_path):
    for name, options, sentence in [
        ("x.ggml", [], "x.ggml: export writes a folder such as x, or a file x.gguf"),
        ("x.gguf", ["--adapter"], "--adapter writes a folder, not .*x.gguf"),
        ("x", ["--dtype", "f16"], "--dtype f16 is for a file x.gguf, not for .*x"),
        ("", [], "already exists"),
    ]:
        with refused(sentence):
            main(["export", "--run", "runs/x", "--to", str(tmp_path / name), *options])
