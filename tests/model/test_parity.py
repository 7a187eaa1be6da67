"""Each preset against its family in transformers: the same weights give the same logits, in float64."""

import pytest
import torch
import transformers as hf

from configs.compose import compose
from model import build_model
from model.hub import FAMILIES, best_match
from model.hub.spec import config_from_spec, spec_from_config
from model.hub.tensors import resolve
from tests.parts import VOCABULARY, tokens

ROUGH = 1e-5  # theirs makes its angles, or its norms, in float32
IDS = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
SIZES = ["model.d_model=32", "model.n_layers=2", "model.n_heads=4", "model.context_length=64"]
LATENT = "model=deepseek model.attention.kv_lora_rank=16 model.attention.qk_rope_head_dim=4 "
LATENT += "model.attention.qk_nope_head_dim=10 model.attention.v_head_dim=6 model.attention.q_lora_rank="
RELATIVE = "model.position.num_buckets=16 model.position.max_distance=40"
PRESETS = {  # what is built, the family that it is, and how near it comes
    "model=gpt2": ("gpt2", 1e-10),
    "model=llama": ("llama", ROUGH),
    "model=llama position=rope_llama3 model.position.scaling.original_max_position=32": ("llama", ROUGH),
    "model=llama position=rope_linear": ("llama", ROUGH),
    "model=llama position=rope_yarn model.position.scaling.original_max_position=16": ("llama", ROUGH),
    "model=llama model.attention.sliding_window=5": ("mistral", ROUGH),
    "model=llama model.attention.qk_norm=head": ("qwen3", ROUGH),
    "model=modern": ("nanochat", ROUGH),
    f"{LATENT}null": ("deepseek_v3", ROUGH),
    f"{LATENT}20": ("deepseek_v3", ROUGH),
    "model=bert": ("bert", 1e-10),
    "model=roberta": ("roberta", 1e-10),
    f"model=t5 {RELATIVE}": ("t5", ROUGH),
    f"model=flan_t5 {RELATIVE}": ("t5", ROUGH),
    "model=bart": ("bart", 1e-10),
}


def drawn(model):
    """Every weight alive: a 0 or a 1 would hide a mistake."""
    draw = torch.Generator().manual_seed(0)
    for weight in model.parameters():
        noise = 0.1 * torch.randn(weight.shape, generator=draw)
        weight.data = noise if weight.ndim > 1 else weight.data + noise
    return model.double().eval()


def copied(ours, theirs, tensors):
    """Ours with their weights."""
    weights = theirs.state_dict()
    for name, place in resolve(tensors, dict(ours.named_parameters())).items():
        for our_name, piece in zip(place.names, place.rule.to_ours(weights[name]), strict=True):
            ours.get_parameter(our_name).data = piece.clone()
    return ours


def both(words):
    """Ours, and theirs as the hub describes it, with the same weights."""
    config = compose([*words.split(), *SIZES]).model
    found = best_match(spec_from_config(config, build_model(config, VOCABULARY)), IDS)
    spec = found.spec
    theirs = found.hf_config | {"vocab_size": VOCABULARY}
    whole = getattr(hf, found.family.architecture)
    options = whole.config_class.from_dict(theirs)
    options._attn_implementation = "eager"
    model = drawn(whole(options))
    config = config_from_spec(spec, found.family.init)
    ours = build_model(config, VOCABULARY).double().eval()
    return found.family, model, copied(ours, model, found.family.tensors(spec, theirs))


@pytest.mark.parametrize("words", PRESETS)
@torch.no_grad()
def test_logits(words):
    family, theirs, net = both(words)
    name, tolerance = PRESETS[words]
    assert family.model_type == name and theirs.config.model_type == name
    text, visible = tokens(3, 21), torch.arange(21) < torch.tensor([[21], [15], [9]])
    if net.kind == "decoder":
        difference = net(text) - theirs(text).logits
    elif net.kind == "encoder":
        text = text * visible
        types = (torch.arange(21) > 8).long().expand(3, -1) * (name == "bert")
        expected = theirs(text, token_type_ids=types, attention_mask=visible.long()).logits
        difference = (net(text, types=types, visible=visible) - expected)[visible]
    else:
        answer = tokens(3, 14, seed=1)
        expected = theirs(text, attention_mask=visible.long(), decoder_input_ids=answer).logits
        difference = net(text, answer, source_visible=visible) - expected
    assert difference.abs().max() < tolerance


def test_every_family_is_a_preset():
    assert {name for name, _ in PRESETS.values()} == set(FAMILIES)
