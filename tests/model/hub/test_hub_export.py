"""Exported models load in transformers, with equal logits; models that fit no class are refused."""

import json
from types import SimpleNamespace

import pytest
import torch
import transformers as hf
from safetensors.torch import save_file

from configs import registry
from configs.compose import compose
from data.tokenizers.train import TOKENIZERS
from model import build_model
from model.hub import HubError, convert
from model.hub.convert import export, load_hf
from tests.model.hub.hub_models import logits, randomize
from tests.parts import part

TEXT = "def fall(self):  # don't\n\treturn 12345 + x[10]\r\n" * 9
SIZES = ["model.d_model=32", "model.n_layers=2", "model.n_heads=4", "model.context_length=64"]


def build(overrides, kind="byte", specials=("end", "pad", "start", "mask")):
    """(model, tokenizer, config) with random weights."""
    config = compose([*overrides.split(), *SIZES]).model
    options = part("tokenizer", kind) | ({"vocab_size": 290} if kind == "bpe" else {})
    trainer = registry.build("tokenizer", TOKENIZERS, options, {})
    tokenizer = trainer.train(lambda include_val: iter([TEXT]), specials)
    return randomize(build_model(config, tokenizer.vocab_size)), tokenizer, config


EXPORTS = [
    ("model=modern", "bpe", "NanoChat"),
    ("model=modern model.head.logit_softcap=null", "byte", "NanoChat"),
    ("model=modern model.head.tie_weights=true attention=gqa model.attention.qk_norm=head", "char", "Nano"),
    ("model=gpt2", "bpe", "GPT2"),
    ("model=gpt2 model.norm.eps=1", "byte", "GPT2"),
    ("model=gpt2 attention=mha_nobias ffn=relu2 norm=layernorm model.norm.bias=false", "byte", "GPT2"),
    ("model=llama attention=mqa norm=rmsnorm_no_weight ffn=geglu model.attention.bias=true", "char", "Llama"),
    ("model=llama position=rope_llama3", "bpe", "Llama"),
    ("model=llama model.attention.sliding_window=5", "bpe", "Mistral"),
    ("model=llama attention=mha_qknorm model.attention.sliding_window=7", "bpe", "Qwen3"),
    ("model=deepseek position=rope_yarn norm=rmsnorm_no_weight", "bpe", "DeepseekV3"),
    ("model=bert model.embedding.type_vocab_size=0", "byte", "Roberta"),
    ("model=bert", "bpe", "Bert"),
    ("model=roberta norm=layernorm_bert", "bpe", "Roberta"),
    ("model=t5", "bpe", "T5"),
    ("model=t5 model.head.scale_by_inv_sqrt_d=false", "char", "T5"),
    ("model=flan_t5 model.encoder.n_layers=3", "byte", "T5"),
    ("model=bart ffn=relu attention=mha_nobias", "bpe", "Bart"),
]


@pytest.mark.parametrize(("overrides", "kind", "name"), EXPORTS)
def test_exported_models_load_in_transformers(overrides, kind, name, tmp_path):
    specials = ("end", "start", "pad", "mask", "sentinel_0", "sentinel_1")
    model, tokenizer, config = build(overrides, kind, specials)
    family = export(model, tokenizer, config, tmp_path / "out")
    assert {path.name for path in tmp_path.iterdir()} == {"out"}
    hf_model = getattr(hf, family.auto).from_pretrained(tmp_path / "out").eval()
    assert type(hf_model).__name__ == family.architecture and family.architecture.startswith(name)
    source, tokens = torch.arange(12).view(2, 6), torch.arange(20).view(2, 10)
    actual, expected = logits(model, source, tokens), logits(hf_model, source, tokens)
    assert (actual - expected).abs().max() <= (5e-5 if "flan" in overrides else 1e-5)
    assert torch.equal(actual.argmax(-1), expected.argmax(-1))
    hf_tokenizer = hf.AutoTokenizer.from_pretrained(tmp_path / "out")
    assert hf_tokenizer(TEXT)["input_ids"] == tokenizer.encode(TEXT).tolist()
    assert hf_tokenizer.decode(tokenizer.encode(TEXT).tolist()) == TEXT
    assert hf_tokenizer.eos_token_id == hf_model.config.eos_token_id == tokenizer.specials["end"]
    assert hf_tokenizer.pad_token_id == tokenizer.specials["pad"]
    assert hf_tokenizer.mask_token_id == tokenizer.specials["mask"]
    assert load_hf(tmp_path / "out")[1].specials == tokenizer.specials


MISMATCHES = {
    "model=deepseek position=alibi": 'position.kind is "alibi" and DeepseekV3ForCausalLM has "rope"',
    "model=llama model.attention.logit_softcap=9": "logit_softcap is 9 and LlamaForCausalLM has null",
    "model=gpt2 attention=gqa": "queries_per_kv is 2 and GPT2LMHeadModel has 1",
    "model=modern ffn=gelu norm=rmsnorm": "norm.weight is true and NanoChatForCausalLM has false",
    "model=deepseek norm=rmsnorm model.norm.eps=0.1": "norm.eps is 0.1 and DeepseekV3ForCausalLM has 1e-06",
    "model=llama ffn=geglu norm=layernorm": 'norm.kind is "layernorm" and LlamaForCausalLM has "rmsnorm"',
    "model=bert ffn=gelu_tanh": 'mlm_transform is "gelu" and BertForMaskedLM has "gelu_tanh"',
    "model=vaswani": 'position.kind is "sinusoidal" and BartForConditionalGeneration has "learned"',
    "model=t5 model.encoder.d_model=64": "encoder.d_model is 64 and T5ForConditionalGeneration has 32",
    "model=llama model.attention.logit_softcap=9 attention=mha_qknorm ": "Qwen3ForCausalLM has null",
}


@pytest.mark.parametrize(("overrides", "sentence"), MISMATCHES.items())
def test_models_that_fit_no_class_are_refused(overrides, sentence, tmp_path):
    with pytest.raises(HubError, match=sentence):
        export(*build(overrides), tmp_path / "out")
    assert not list(tmp_path.iterdir())


def test_family_option(tmp_path):
    model = build("model=llama")
    assert export(*model, tmp_path / "mistral", "mistral").architecture == "MistralForCausalLM"
    with pytest.raises(HubError, match='is "rmsnorm" and GPT2LMHeadModel has "layernorm" .and 1 more'):
        export(*model, tmp_path / "gpt2", "gpt2")
    with pytest.raises(ValueError, match="unknown family 'gpt3'; expected one of: gpt2, llama"):
        export(*model, tmp_path / "gpt3", "gpt3")
    without_pad = build("model=roberta", specials=("end", "mask"))
    with pytest.raises(HubError, match="from pad_token_id; this tokenizer has no padding"):
        export(*without_pad, tmp_path / "roberta", "roberta")
    assert export(*without_pad, tmp_path / "bert").architecture == "BertForMaskedLM"


def test_a_failed_export_leaves_nothing(tmp_path, monkeypatch):
    """A full disk, or a mistake in a family's table, which is found before the folder appears."""

    def fail(*args):
        raise OSError(28, "no space left on device")

    def save_mistaken(tensors, *args):
        name = "model.layers.0.self_attn.q_proj.weight"
        save_file(tensors | {name: tensors[name].roll(1, 0)}, *args)

    for save, error, sentence in ((fail, OSError, "no space"), (save_mistaken, HubError, "logits differ by")):
        monkeypatch.setattr(convert, "save_file", save)
        with pytest.raises(error, match=sentence):
            export(*build("model=modern"), tmp_path / "out")
        assert not list(tmp_path.iterdir())


def test_exported_config(tmp_path):
    export(*build("model=llama position=rope_llama3 attention=gqa"), tmp_path / "out")
    config = SimpleNamespace(**json.loads((tmp_path / "out/config.json").read_text()))
    assert (config.model_type, config.num_key_value_heads, config.vocab_size) == ("llama", 2, 260)
    assert config.rope_scaling["rope_type"] == "llama3" and config.rope_theta == 10000.0
    assert (config.eos_token_id, config.pad_token_id, config.bos_token_id) == (256, 257, 258)
    assert load_hf(tmp_path / "out")[2].position == compose(["position=rope_llama3"]).model.position
