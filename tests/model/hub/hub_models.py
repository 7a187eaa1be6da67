"""Tiny models of transformers, one for each variant that the hub supports."""

import json
from copy import deepcopy

import torch
import transformers as hf
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from model.hub.convert import export, load_hf
from model.hub.families import FAMILIES
from tests.data.test_huggingface import byte_pairs
from tests.parts import randomize


def unigrams(words, unk=0, scheme="always"):
    """A tokenizer whose words begin with their space."""
    tokenizer = Tokenizer(models.Unigram([(word, -2.0) for word in words], unk_id=unk))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme=scheme)
    tokenizer.decoder = decoders.Metaspace(prepend_scheme=scheme)
    return tokenizer


hf.logging.set_verbosity_error()
hf.logging.disable_progress_bar()
AUTO = {
    "decoder": hf.AutoModelForCausalLM,
    "encoder": hf.AutoModelForMaskedLM,
    "encoder_decoder": hf.AutoModelForSeq2SeqLM,
}
ROWS, CONTEXT = 300, 64
END, PAD = (byte_pairs().token_to_id(name) for name in ("<eos>", "<pad>"))
SIZES = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}
SIZES |= {"max_position_embeddings": CONTEXT}
SIZES |= {"intermediate_size": 48}
WINDOWS = {
    "num_hidden_layers": 3,
    "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
}
GROUPED = SIZES | {"num_key_value_heads": 2}
SLIDING = {"use_sliding_window": True, "sliding_window": 5}
GPT2 = {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": CONTEXT}
ROBERTA = SIZES | {"max_position_embeddings": CONTEXT + PAD + 1, "type_vocab_size": 1}
DISTILBERT = {"dim": 32, "n_layers": 2, "n_heads": 4, "hidden_dim": 48, "activation": "relu"}
DISTILBERT |= {"max_position_embeddings": CONTEXT}
T5 = {"d_model": 32, "d_kv": 6, "d_ff": 48, "num_heads": 4}
T5 |= {"num_layers": 3, "num_decoder_layers": 2}
BART = {"d_model": 32, "encoder_layers": 2, "decoder_layers": 3, "max_position_embeddings": CONTEXT}
BART |= {"encoder_attention_heads": 4, "decoder_attention_heads": 4, "encoder_ffn_dim": 48}
BART |= {"decoder_ffn_dim": 48, "forced_eos_token_id": None}


def rope(kind, original, base=10000.0, **options):
    """Such that some pairs of channels are kept, some scaled, one or two lie between."""
    original = {"original_max_position_embeddings": original} if original else {}
    return {"rope_parameters": {"rope_type": kind, "rope_theta": base, **original, **options}}


OTHER = rope("default", None, base=500.0) | {"hidden_act": "gelu_new"}
RMSNORM, LAYERNORM = (OTHER | {f"{kind}_norm_eps": 1e-4} for kind in ("rms", "layer"))
THETAS = {
    "full_attention": {"rope_type": "default", "rope_theta": 5000.0},
    "sliding_attention": {"rope_type": "default", "rope_theta": 100.0},
}
SCALED = THETAS | {"full_attention": {"rope_type": "linear", "factor": 4.0, "rope_theta": 5000.0}}
# {model_type, or model_type and what is special: keys of config.json}
MODELS = {
    "gpt2": GPT2,
    "gpt2, scores not scaled": GPT2
    | {"tie_word_embeddings": False, "n_inner": 40, "activation_function": "relu"}
    | {"scale_attn_weights": False},
    "llama, one key for two queries": GROUPED,
    "llama, one key for all, tied": SIZES | {"num_key_value_heads": 1, "tie_word_embeddings": True},
    "llama, llama3": GROUPED
    | rope("llama3", 128, factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0),
    "llama, linear": GROUPED
    | {"attention_bias": True, "mlp_bias": True, "head_dim": 12, "hidden_act": "gelu"}
    | rope("linear", None, factor=4.0),
    "mistral": GROUPED | {"sliding_window": 5},
    "qwen3": GROUPED | {"head_dim": 8},
    "qwen3, windows": GROUPED | WINDOWS | SLIDING | {"head_dim": 8},
    "smollm3": GROUPED
    | {"num_hidden_layers": 3, "no_rope_layers": [1, 0, 1], "tie_word_embeddings": False},
    "olmo2": GROUPED | {"rms_norm_eps": 1e-3, "attention_bias": True},
    "gemma2": GROUPED
    | {"num_hidden_layers": 3, "head_dim": 12, "sliding_window": 5, "query_pre_attn_scalar": 7}
    | {"attn_logit_softcapping": 2.0, "final_logit_softcapping": 3.0},
    "gemma3_text": GROUPED
    | {"num_hidden_layers": 3, "sliding_window_pattern": 2, "sliding_window": 5}
    | {"head_dim": 12, "query_pre_attn_scalar": 7, "rope_parameters": SCALED}
    | {"final_logit_softcapping": 3.0},
    "bert": SIZES,
    "bert, untied": SIZES
    | {"hidden_act": "relu", "type_vocab_size": 1, "tie_word_embeddings": False},
    "roberta": ROBERTA,
    "roberta, two types, untied": ROBERTA | {"type_vocab_size": 2, "tie_word_embeddings": False},
    "xlm-roberta": ROBERTA,
    "camembert": ROBERTA | {"type_vocab_size": 2, "hidden_act": "relu"},
    "distilbert": DISTILBERT,
    "electra": SIZES | {"embedding_size": 32, "hidden_act": "relu", "type_vocab_size": 3},
    "modernbert": SIZES | {"num_hidden_layers": 3, "local_attention": 7, "rope_parameters": THETAS},
    "modernbert, biases": SIZES
    | dict.fromkeys(("norm_bias", "mlp_bias", "attention_bias", "classifier_bias"), True)
    | {"global_attn_every_n_layers": 2, "local_attention": 6, "tie_word_embeddings": False}
    | {"classifier_activation": "relu", "classifier_pooling": "mean"},
    "t5": T5,
    "t5, flan": T5 | {"feed_forward_proj": "gated-gelu", "tie_word_embeddings": False},
    "mt5": T5 | {"relative_attention_num_buckets": 8},
    "bart": BART,
    "qwen2": GROUPED | RMSNORM | SLIDING | {"max_window_layers": 0},
    "gemma": GROUPED | RMSNORM | {"head_dim": 12, "attention_bias": True, "hidden_act": "gelu"},
    "phi3": GROUPED | RMSNORM | {"sliding_window": 5, "partial_rotary_factor": 0.75},
    "stablelm": GROUPED | LAYERNORM | {"partial_rotary_factor": 0.75},
    "starcoder2": SIZES
    | OTHER
    | {"sliding_window": 5, "norm_epsilon": 1e-4, "residual_dropout": 0.1},
    "olmo": GROUPED | OTHER | {"attention_bias": True},
    "gpt_neox": SIZES | {"rotary_pct": 0.75, "rotary_emb_base": 500, "layer_norm_eps": 1e-3},
    "phi": GROUPED | {"partial_rotary_factor": 0.75, "rope_theta": 500.0, "qk_layernorm": True},
    "persimmon": SIZES | OTHER | LAYERNORM | {"partial_rotary_factor": 0.75, "qk_layernorm": False},
    "mbart": BART | {"scale_embedding": True},
    "pegasus": BART | {"scale_embedding": True, "activation_function": "relu"},
    "marian": BART | {"activation_function": "swish"},
}


def build_hf(name, **keys):
    model_type = name.partition(",")[0]
    options = deepcopy(MODELS[name])  # its dicts are changed
    ids = {"vocab_size": ROWS, "pad_token_id": PAD, "bos_token_id": END, "eos_token_id": END}
    ids |= {"decoder_start_token_id": PAD} if options.get("d_model") else {}  # has a decoder
    config = hf.AutoConfig.for_model(model_type, **ids | options | keys)
    auto = AUTO[FAMILIES[model_type].spec["kind"]]
    return randomize(auto.from_config(config, attn_implementation="eager"))


PLAIN = {"tokenizer_class": "PreTrainedTokenizerFast"}


def save(model, folder, tokenizer=None, settings=PLAIN):
    """settings: tokenizer_config.json"""
    model.save_pretrained(folder)
    (tokenizer or byte_pairs()).save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    return folder


def edit_config(folder, **keys):
    """Change keys of config.json; ... removes one."""
    path = folder / "config.json"
    config = json.loads(path.read_text()) | keys
    path.write_text(json.dumps({key: value for key, value in config.items() if value is not ...}))


def there_and_back(folder):
    """(model, tokenizer, the folder of their export, which is beside it)"""
    model, tokenizer, _ = load_hf(folder)
    back = folder.with_name("back")
    export(model, tokenizer, back)
    return model.eval(), tokenizer, back


@torch.no_grad()
def logits(model, source, tokens):
    """Of a model of either library."""
    if isinstance(model, hf.PreTrainedModel):
        inputs = {"input_ids": source, "decoder_input_ids": tokens}
        has_source = model.config.is_encoder_decoder
        return model(**inputs if has_source else {"input_ids": tokens}).logits
    return model(source, tokens) if model.kind == "encoder_decoder" else model(tokens)
