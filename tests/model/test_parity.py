"""Each preset against its family in transformers: the same weights give the same logits."""

import re
from collections.abc import Callable
from typing import NamedTuple

import pytest
import torch
import transformers as hf

from model import build_model
from tests.parts import VOCABULARY, tokens
from training.config import compose

# What in a name of theirs becomes what in ours; each pair goes over all names in turn.
# fmt: off
LLAMA = {
    "model.embed_tokens": "embedding.table", "model.layers": "stack.blocks", "model.norm": "stack.final_norm",
    "lm_head": "head.map", "input_layernorm": "attention_norm", "post_attention_layernorm": "ffn_norm",
    "self_attn.q_a_proj": "attention.query.0", "self_attn.q_a_layernorm": "attention.query.1",
    "self_attn.q_b_proj": "attention.query.2", "kv_a_layernorm": "latent_norm", "self_attn": "attention",
    "q_": "query_", "k_": "key_", "v_": "value_", "o_proj": "out", "(query|key|value)_proj": r"\1",
    "mlp.(gate|up)_proj": r"ffn.\1", "mlp.fc1": "ffn.up", "mlp.(fc2|down_proj)": "ffn.out",
}
GPT2 = {
    "transformer.wte": "embedding.table", "transformer.wpe": "stack.position.table",
    "transformer.h": "stack.blocks", "transformer.ln_f": "stack.final_norm", "lm_head": "head.map",
    "ln_1": "attention_norm", "ln_2": "ffn_norm", "attn": "attention", "attention.c_proj": "attention.out",
    "mlp.c_fc": "ffn.up", "mlp.c_proj": "ffn.out",
}
BERT = {
    "(roberta|bert).": "", "(cls.predictions.transform|lm_head).dense": "head.transform.dense",
    "(cls.predictions.transform.LayerNorm|lm_head.layer_norm)": "head.transform.norm",
    "(cls.predictions|lm_head)(.decoder)?": "head.map", "embeddings.word_embeddings": "embedding.table",
    "embeddings.token_type_embeddings": "embedding.types",
    "embeddings.position_embeddings": "stack.position.table", "embeddings.LayerNorm": "stack.embedding_norm",
    "encoder.layer": "stack.blocks", "attention.self": "attention", "attention.output.dense": "attention.out",
    "attention.output.LayerNorm": "attention_norm", "intermediate.dense": "ffn.up", "output.dense": "ffn.out",
    "output.LayerNorm": "ffn_norm",
}
T5 = {
    ".*(shared|embed_tokens)": "embedding.table", "lm_head": "head.map",
    "block.0.layer.0.SelfAttention.relative_attention_bias": "position.table",
    "final_layer_norm": "final_norm", "layer.0.layer_norm": "attention_norm",
    "(encoder.*)layer.1.layer_norm": r"\1ffn_norm", "layer.1.layer_norm": "cross_norm",
    "layer.2.layer_norm": "ffn_norm", "block": "blocks", "layer.0.SelfAttention": "attention",
    "layer.1.EncDecAttention": "cross", "layer.[12].DenseReluDense": "ffn", "wi_0": "gate", "wi(_1)?": "up",
    r"\.(o|wo)\.": ".out.", r"\.q\.": ".query.", r"\.k\.": ".key.", r"\.v\.": ".value.",
}
BART = {
    ".*(shared|embed_tokens)": "embedding.table", "lm_head": "head.map", "model.": "",
    "embed_positions": "position.table", "layernorm_embedding": "embedding_norm", "layers": "blocks",
    "self_attn_layer_norm": "attention_norm", "encoder_attn_layer_norm": "cross_norm",
    "final_layer_norm": "ffn_norm", "self_attn": "attention", "encoder_attn": "cross", "q_proj": "query",
    "k_proj": "key", "v_proj": "value", "out_proj": "out", "fc1": "ffn.up", "fc2": "ffn.out",
}
# fmt: on


def as_it_is(name, weight):
    return {name: weight}


def from_gpt2(name, weight):
    """One matrix for queries, keys and values; every matrix the other way round."""
    weight = weight.mT if re.search("c_.*weight", name) else weight
    if "c_attn" not in name:
        return {name: weight}
    query, key, value = weight.chunk(3)
    parts = {"query": query, "key": key, "value": value}
    return {name.replace("c_attn", part): w for part, w in parts.items()}


def from_nanochat(name, weight):
    """Pairs turn the other way: the halves of a head change places."""
    turns = re.search("[qk]_proj", name)
    return {name: weight.unflatten(0, (4, 2, 4)).flip(1).flatten(0, 2) if turns else weight}


def from_deepseek(name, weight):
    """Neighbours turn, not halves; latent and rotary key share a matrix, and so do key and value."""
    halves = [0, 2, 1, 3]
    if re.search("q_(b_)?proj", name):
        plain, rotary = weight.unflatten(0, (4, 14)).split([10, 4], 1)
        return {name: torch.cat([plain, rotary[:, halves]], 1).flatten(0, 1)}
    if "kv_a_proj" in name:
        latent, rotary = weight.split([16, 4])
        weights = {"latent": latent, "key_position": rotary[halves]}
    elif "kv_b_proj" in name:
        key, value = weight.unflatten(0, (4, 16)).split([10, 6], 1)
        weights = {"key": key.flatten(0, 1), "value": value.flatten(0, 1)}
    else:
        return {name: weight}
    return {re.sub("kv_._proj(_with_mqa)?", part, name): w for part, w in weights.items()}


def without_spare_rows(name, weight):
    """The first one or two positions are never read, and BART adds a constant 0."""
    return {} if name == "final_logits_bias" else {name: weight[-64:] if "position" in name else weight}


class Family(NamedTuple):
    theirs: type
    options: dict
    table: dict
    pieces: Callable
    ours: str
    tolerance: float = 1e-10


SIZES = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "max_position_embeddings": 64}
BOTH_SIDES = SIZES | {"intermediate_size": 128, "type_vocab_size": 2}
CAUSAL = SIZES | {"intermediate_size": 96, "num_key_value_heads": 2, "tie_word_embeddings": False}
EVERY_HEAD = CAUSAL | {"num_key_value_heads": 4}
STRETCHED = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
STRETCHED |= {"rope_theta": 10000.0, "original_max_position_embeddings": 32}
LATENT = EVERY_HEAD | {"kv_lora_rank": 16, "qk_rope_head_dim": 4, "qk_nope_head_dim": 10, "v_head_dim": 6}
LATENT |= {"first_k_dense_replace": 2}
OUR_LATENT = "model=deepseek model.attention.latent_width=16 model.attention.rotary_width=4"
OUR_LATENT += " model.attention.plain_width=10 model.attention.value_width=6 model.attention.query_rank="
T5_SIZES = {"d_model": 32, "d_kv": 8, "num_layers": 2, "num_heads": 4, "relative_attention_num_buckets": 16}
T5_SIZES |= {"relative_attention_max_distance": 40}
OUR_T5 = "model.position.buckets=16 model.position.max_distance=40"
BART_SIZES = {"d_model": 32, "encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": 4}
BART_SIZES |= {"decoder_attention_heads": 4, "encoder_ffn_dim": 128, "decoder_ffn_dim": 128}
ROUGH = 1e-5  # theirs makes its angles, or its norms, in float32
# fmt: off
FAMILIES = {
    "gpt2": Family(hf.GPT2LMHeadModel, {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 64},
        GPT2, from_gpt2, "model=gpt2"),
    "llama": Family(hf.LlamaForCausalLM, CAUSAL, LLAMA, as_it_is, "model=llama", ROUGH),
    "llama3": Family(hf.LlamaForCausalLM, CAUSAL | {"rope_parameters": STRETCHED}, LLAMA, as_it_is,
        "model=llama position=rope_llama3 model.position.scaling.original_context=32", ROUGH),
    "mistral": Family(hf.MistralForCausalLM, CAUSAL | {"sliding_window": 5}, LLAMA, as_it_is,
        "model=llama model.attention.window=5", ROUGH),
    "qwen3": Family(hf.Qwen3ForCausalLM, CAUSAL | {"head_dim": 8}, LLAMA, as_it_is,
        "model=llama model.attention.qk_norm=head", ROUGH),
    "modern": Family(hf.NanoChatForCausalLM, EVERY_HEAD | {"intermediate_size": 128}, LLAMA, from_nanochat,
        "model=modern", ROUGH),
    "deepseek": Family(hf.DeepseekV3ForCausalLM, LATENT | {"q_lora_rank": None}, LLAMA, from_deepseek,
        OUR_LATENT + "null", ROUGH),
    "deepseek with a query rank": Family(hf.DeepseekV3ForCausalLM, LATENT | {"q_lora_rank": 20}, LLAMA,
        from_deepseek, OUR_LATENT + "20", ROUGH),
    "bert": Family(hf.BertForMaskedLM, BOTH_SIDES, BERT, as_it_is, "model=bert"),
    "roberta": Family(hf.RobertaForMaskedLM, BOTH_SIDES | {"max_position_embeddings": 65,
        "layer_norm_eps": 1e-5}, BERT, without_spare_rows, "model=roberta model.embedding.token_types=2"),
    "t5": Family(hf.T5ForConditionalGeneration, T5_SIZES | {"d_ff": 128}, T5, as_it_is,
        f"model=t5 {OUR_T5}", ROUGH),
    "flan_t5": Family(hf.T5ForConditionalGeneration, T5_SIZES | {"d_ff": 96, "tie_word_embeddings": False,
        "feed_forward_proj": "gated-gelu"}, T5, as_it_is, f"model=flan_t5 {OUR_T5}", ROUGH),
    "bart": Family(hf.BartForConditionalGeneration, BART_SIZES | {"max_position_embeddings": 64}, BART,
        without_spare_rows, "model=bart"),
}
# fmt: on


def drawn(model):
    """Every weight alive: a 0 or a 1 would hide a mistake."""
    draw = torch.Generator().manual_seed(0)
    for weight in model.parameters():
        noise = 0.1 * torch.randn(weight.shape, generator=draw)
        weight.data = noise if weight.ndim > 1 else weight.data + noise
    return model.double().eval()


def copied(net, theirs, family):
    weights = {}
    for their_name, weight in theirs.state_dict().items():
        for name, piece in family.pieces(their_name, weight).items():
            for word, our_word in family.table.items():
                name = re.sub(word, our_word, name)
            weights[name] = piece
    net.load_state_dict(weights)  # strict: nothing missing, nothing left over
    return net


@pytest.mark.parametrize("name", FAMILIES)
@torch.no_grad()
def test_logits(name):
    family = FAMILIES[name]
    options = {"vocab_size": VOCABULARY, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
    options |= family.options | {"attn_implementation": "eager"}
    theirs = drawn(family.theirs(family.theirs.config_class(**options)))
    sizes = ["model.d_model=32", "model.n_layers=2", "model.n_heads=4", "model.context=64"]
    config = compose([*family.ours.split(), *sizes]).model
    net = copied(build_model(config, VOCABULARY).double().eval(), theirs, family)
    text, visible = tokens(3, 21), torch.arange(21) < torch.tensor([[21], [15], [9]])
    if config.kind == "decoder":
        difference = net(text) - theirs(text).logits
    elif config.kind == "encoder":
        text, types = text * visible, (torch.arange(21) > 8).long().expand(3, -1)
        expected = theirs(text, token_type_ids=types, attention_mask=visible.long()).logits
        difference = (net(text, types=types, visible=visible) - expected)[visible]
    else:
        answer = tokens(3, 14, seed=1)
        expected = theirs(text, attention_mask=visible.long(), decoder_input_ids=answer).logits
        difference = net(text, answer, source_visible=visible) - expected
    assert difference.abs().max() < family.tolerance
