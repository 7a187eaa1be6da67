"""Exported models load in transformers, with equal logits; models that fit no class are refused."""

import re
from dataclasses import replace

import pytest
import torch
import transformers as hf

from configs.compose import compose
from configs.errors import HubError
from model.hub import convert
from model.hub.__main__ import import_run
from model.hub.convert import export, load_hf
from model.hub.families.llama import LLAMA
from model.hub.spec import config_from_spec, spec_from_model
from model.transformer import build_model
from tests.data.test_huggingface import SAMPLE
from tests.data.test_tokenizer import make
from tests.model.hub.hub_models import AUTO, edit_config, logits
from tests.parts import PARTS, part, randomize, refused, thin

TEXT = SAMPLE * 3
SIZES = "model.d_model=32 model.n_layers=2 model.n_heads=4 model.context_length=64"


def build(overrides, specials=("end", "pad", "start", "mask")):
    """(model, tokenizer) with random weights."""
    config = compose(f"tokenizer=byte {SIZES} {overrides}".split())
    tokenizer = make(config.tokenizer["kind"], TEXT, specials)
    return randomize(build_model(config.model, tokenizer.vocab_size)), tokenizer


NARROW = "model.layer_kinds.window.attention.sliding_window=5"
EXPORTS = {
    "model=modern model.bigrams=null tokenizer=bpe": "Persimmon",
    "model=gpt2 tokenizer=bpe": "GPT2",
    "model=gpt2 attention=mha_nobias ffn=relu2 model.norm.bias=false model.norm.eps=1": "GPT2",
    "model=llama attention=mqa norm=rmsnorm_no_weight ffn=geglu model.attention.bias=true tokenizer=char": "Llama",
    "model=llama model.attention.sliding_window=5 tokenizer=bpe": "Mistral",
    "model=llama attention=mha_qknorm model.attention.sliding_window=7 tokenizer=bpe": "Qwen3",
    "model=llama norm=layernorm block=parallel_shared": "StableLm",
    f"model=llama attention=mha_qknorm model.layers=[window,full] {NARROW} tokenizer=bpe": "Qwen3",
    "model=gpt2 position=rope block=parallel": "GPTNeoX",
    "model=bert model.embedding.type_vocab_size=0": "Roberta",
    "model=bert tokenizer=bpe": "Bert",
    "model=qwen2 tokenizer=bpe": "Llama",
    f"model=gemma3 model.layers=[window,full] {NARROW} tokenizer=bpe": "Gemma3",
    (
        "model=llama attention=gqa block=sandwich ffn=geglu_tanh model.layers=[window,full] "
        f"model.attention.logit_softcap=5 model.embedding.scale_by_sqrt_d=true {NARROW} tokenizer=bpe"
    ): "Gemma2",
    f"model=modernbert {NARROW} tokenizer=bpe": "ModernBert",
    "model=flan_t5 model.encoder.n_layers=3": "T5",
    "model=bart ffn=relu attention=mha_nobias model.head.tie_weights=false tokenizer=bpe": "Bart",
    "model=vaswani model.position.layout=halves tokenizer=char": "Marian",
    "model=gpt2 position=sinusoidal": "GPT2",
}


@pytest.mark.parametrize("overrides", thin(EXPORTS, [*EXPORTS][::2]))
def test_exported_models_load_in_transformers(overrides, tmp_path):
    specials = ("end", "start", "pad", "mask", "sentinel_0", "sentinel_1")
    model, tokenizer = build(overrides, specials)
    _, written = export(model, tokenizer, tmp_path / "out")
    architecture = type(written).__name__
    assert list(tmp_path.iterdir()) == [tmp_path / "out"]
    hf_model = AUTO[model.kind].from_pretrained(tmp_path / "out").eval()
    assert type(hf_model).__name__ == architecture
    assert architecture.startswith(EXPORTS[overrides])
    inputs = torch.arange(12).view(2, 6), torch.arange(20).view(2, 10)
    difference = logits(model, *inputs) - logits(hf_model, *inputs)
    assert difference.abs().max() <= (5e-5 if "flan" in overrides else 1e-5)
    hf_tokenizer = hf.AutoTokenizer.from_pretrained(tmp_path / "out")
    ids = tokenizer.encode(TEXT).tolist()
    assert hf_tokenizer(TEXT)["input_ids"] == ids and hf_tokenizer.decode(ids) == TEXT
    assert hf_tokenizer.eos_token_id == hf_model.config.eos_token_id == tokenizer.specials["end"]
    assert hf_tokenizer.pad_token_id == tokenizer.specials["pad"]
    assert hf_tokenizer.mask_token_id == tokenizer.specials["mask"]
    assert load_hf(tmp_path / "out")[1].specials == tokenizer.specials


def test_a_class_that_replaces_the_tokenizer_is_refused(tmp_path):
    built = build("model=qwen2 tokenizer=bpe", ("end", "start", "pad"))
    with refused("AutoTokenizer would load another tokenizer", HubError):
        export(*built, tmp_path / "out", "qwen2")
    assert not list(tmp_path.iterdir())


MISMATCHES = {
    "model=gpt2 position=relative": 'gpt2 .*"relative"; only "learned".*llama',
    "model=modern": "has bigrams; for an export, train with model.bigrams=null",
    "model=modern model.bigrams=null model.head.tie_weights=true": (
        "persimmon .model.embedding_norm is true; only false is supported"
    ),
    "model=bert ffn=geglu": "roberta .type_vocab_size is 2; supported: 1",
    "model=modern_encoder": r"fits this model: roberta \([^()]*\), bert \([^()]*\), roberta",
    "model=llama attention=mha_qknorm model.layers=[full,nope]": (
        r'qwen3 .model.layers is \[{}, {"position.kind": "none"}\]; only null'
    ),
    "model=llama ffn=moe": "with ffn=moe cannot be exported",
    "model=t5 model.encoder.d_model=64": "t5.*model.encoder.d_model is 64; only 32",
}


@pytest.mark.parametrize("overrides", MISMATCHES)
def test_models_that_fit_no_class_are_refused(overrides, tmp_path):
    with refused(MISMATCHES[overrides], HubError):
        export(*build(overrides), tmp_path / "out")
    assert not list(tmp_path.iterdir())


def spec_of(overrides):
    model, _ = build(f"model=llama {overrides}")
    return spec_from_model(model)


def test_layers_have_one_spec():
    """Whichever way they are written."""
    spec = spec_of("model.layers=[window,full]")
    wide = "model.attention.sliding_window=64 model.layer_kinds.window.attention.sliding_window"
    assert spec == spec_of(f"model.layers=[full,window] {wide}=null")
    assert config_from_spec(spec).layers == ["window", "full"]
    assert spec_of("model.layers=[full]") == spec_of("model.layers=null")


@pytest.mark.parametrize("preset", ["gpt2", "bert"])
def test_every_dropout_of_a_class_is_written(preset):
    """Its defaults would drop what this model does not. And converters read the n_ctx of GPT-2."""
    model, _ = build(f"model={preset} model.dropout=0.3")
    written = convert.first_match(spec_from_model(model), {"pad_token_id": 0}).config
    dropouts = {k: v for k, v in written.to_dict().items() if re.search("pdrop$|dropout_prob$", k)}
    assert len(dropouts) > 1 and set(dropouts.values()) == {0.3}
    assert getattr(written, "n_ctx", 64) == 64


def test_family_option(tmp_path):
    model = build("model=llama")
    found, _ = export(*model, tmp_path / "mistral", "mistral")
    assert found.family.model_type == "mistral"
    with refused(r"fits this model: gpt2 \([^()]*\)$", HubError):
        export(*model, tmp_path / "gpt2", "gpt2")
    without_pad = build("model=roberta", specials=("end", "mask"))
    with refused("roberta .positions are counted from pad_token_id; this", HubError):
        export(*without_pad, tmp_path / "roberta", "roberta")
    found, _ = export(*without_pad, tmp_path / "bert")
    assert found.family.model_type == "bert"


def test_a_mistake_in_both_directions_is_found(tmp_path, monkeypatch):
    """Reading back with the same table cannot tell: the model that it gives is the same."""
    model = build("model=llama attention=mha_nobias")
    export(*model, tmp_path / "right")
    swapped = LLAMA.names.replace("q_proj", "x").replace("k_proj", "q_proj").replace("x", "k_proj")
    monkeypatch.setitem(convert.FAMILIES, "llama", LLAMA._replace(names=swapped))
    with refused("the logits of LlamaForCausalLM differ from those of the r", HubError):
        export(*model, tmp_path / "out", "llama")
    with refused("the logits or windows differ from those .*: none", HubError):
        load_hf(tmp_path / "right")
    assert list(tmp_path.iterdir()) == [tmp_path / "right"]


def test_a_window_is_no_matter_of_logits(tmp_path, monkeypatch):
    """A text that is compared may be shorter."""
    monkeypatch.setattr("model.hub.convert.CHECKED", 4)
    export(*build("model=llama model.attention.sliding_window=50"), tmp_path / "out")
    edit_config(tmp_path / "out", layer_types=["full_attention"] * 2)
    with refused("windows differ .*: layer_types is .*full", HubError):
        load_hf(tmp_path / "out")


def test_a_model_with_nan_is_refused(tmp_path):
    model, tokenizer = build("model=llama")
    model.embedding.table.weight.data[:] = torch.nan
    with refused("the logits are NaN or infinite", FloatingPointError):
        export(model, tokenizer, tmp_path / "out")
    assert not list(tmp_path.iterdir())


def test_other_users_can_read_what_is_written(tmp_path):
    """As far as they can read any new file."""
    (tmp_path / "new").touch()
    export(*build("model=llama"), tmp_path / "out")
    import_run(tmp_path / "out", tmp_path / "run")
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert len({path.stat().st_mode for path in files}) == 1


def test_a_part_of_your_own_is_refused(tmp_path, monkeypatch):
    """Even with the weights of another."""
    monkeypatch.setitem(PARTS["attention"], "own", PARTS["attention"]["gqa"])
    _, tokenizer = build("model=llama")
    config = compose(f"model=llama attention=gqa {SIZES}".split()).model
    config = replace(config, attention=part("attention", "gqa", kind="own"))
    model = build_model(config, tokenizer.vocab_size)
    with refused('kind is "own"; only "gqa" is supported', HubError):
        export(model, tokenizer, tmp_path / "out")
    assert not list(tmp_path.iterdir())
