"""Each preset against its family in transformers: with the same weights the same logits."""

import re

import pytest
import torch
import transformers as hf

from configs.compose import compose
from model.hub import FAMILIES, first_match
from model.hub.spec import config_from_spec, spec_from_config
from model.hub.tensors import resolve
from model.transformer import build_model
from tests.model.hub.hub_models import randomize
from tests.parts import VOCABULARY, tokens

ROUGH = 1e-5  # transformers computes angles, or norms, in float32
IDS = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
SIZES = ["model.d_model=32", "model.n_layers=2", "model.n_heads=4", "model.context_length=64"]
LIMIT = "model.position.scaling.original_max_position"
LATENT = (
    "model=deepseek model.attention.kv_lora_rank=16 model.attention.qk_rope_head_dim=4 "
    "model.attention.qk_nope_head_dim=10 model.attention.v_head_dim=6 model.attention.q_lora_rank="
)
RELATIVE = "model.position.num_buckets=16 model.position.max_distance=40"
PRESETS = [  # overrides, the family, and the tolerance
    ("model=gpt2", "gpt2", 1e-10),
    ("model=llama", "llama", ROUGH),
    (f"model=llama position=rope_llama3 {LIMIT}=32", "llama", ROUGH),
    ("model=llama position=rope_linear", "llama", ROUGH),
    (f"model=llama position=rope_yarn {LIMIT}=16", "llama", ROUGH),
    ("model=llama model.attention.sliding_window=5", "mistral", ROUGH),
    ("model=llama model.attention.qk_norm=head", "qwen3", ROUGH),
    ("model=modern", "nanochat", ROUGH),
    (f"{LATENT}null", "deepseek_v3", ROUGH),
    (f"{LATENT}20", "deepseek_v3", ROUGH),
    ("model=bert", "bert", 1e-10),
    ("model=roberta", "roberta", 1e-10),
    (f"model=t5 {RELATIVE}", "t5", ROUGH),
    (f"model=flan_t5 {RELATIVE}", "t5", ROUGH),
    ("model=bart", "bart", 1e-10),
]


def copy_weights(model, hf_model, rules):
    weights = hf_model.state_dict()
    for hf_name, (rule, names) in resolve(rules, dict(model.named_parameters())).items():
        for name, tensor in zip(names, rule.to_ours(weights[hf_name]), strict=True):
            model.get_parameter(name).data = tensor.clone()


@pytest.mark.parametrize(("overrides", "name", "tolerance"), PRESETS)
@torch.no_grad()
def test_logits(overrides, name, tolerance):
    config = compose([*overrides.split(), *SIZES]).model
    match = first_match(spec_from_config(config, build_model(config, VOCABULARY)), IDS)
    family = match.family
    spec = match.spec
    hf_config = match.hf_config | {"vocab_size": VOCABULARY}
    architecture = getattr(hf, family.architecture)
    options = architecture.config_class.from_dict(hf_config)
    options._attn_implementation = "eager"
    hf_model = randomize(architecture(options), 0.1).double()
    assert family.model_type == name and hf_model.config.model_type == name
    model = build_model(config_from_spec(spec), VOCABULARY).double().eval()
    copy_weights(model, hf_model, family.tensors(spec, hf_config))
    text = tokens(3, 21)
    visible = torch.arange(21) < torch.tensor([[21], [15], [9]])
    if model.kind == "decoder":
        difference = model(text) - hf_model(text).logits
    elif model.kind == "encoder":
        text = text * visible
        types = (torch.arange(21) > 8).long().expand(3, -1) * (name == "bert")
        expected = hf_model(text, token_type_ids=types, attention_mask=visible.long()).logits
        difference = (model(text, types=types, visible=visible) - expected)[visible]
    else:
        answer = tokens(3, 14, seed=1)
        expected = hf_model(text, attention_mask=visible.long(), decoder_input_ids=answer).logits
        difference = model(text, answer, source_visible=visible) - expected
    assert difference.abs().max() < tolerance


def test_every_family_is_a_preset():
    assert {name for _, name, _ in PRESETS} == set(FAMILIES)


@pytest.mark.parametrize("preset", ["gpt2", "bert"])
def test_every_dropout_of_a_class_is_written(preset):
    """Its defaults would drop what this model does not."""
    config = compose([f"model={preset}", "model.dropout=0.3", *SIZES]).model
    match = first_match(spec_from_config(config, build_model(config, VOCABULARY)), IDS)
    dropouts = {k: v for k, v in match.hf_config.items() if re.search("pdrop$|dropout_prob$", k)}
    assert len(dropouts) > 1 and set(dropouts.values()) == {0.3}
