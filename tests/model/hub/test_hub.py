"""The hub: folders of transformers become runs, and runs such folders, with equal logits."""

import json
import os
import re
import shutil

import pytest
import torch
import transformers as hf
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer
from tokenizers.models import WordPiece
from tokenizers.pre_tokenizers import BertPreTokenizer

from configs.cli import run_command
from configs.errors import CheckpointError
from model.checkpoint.files import read_state
from model.checkpoint.load import load_run
from model.generate.decode import generate
from model.hub import FAMILIES, HubError
from model.hub.__main__ import export_run, import_run, main
from model.hub.convert import load_hf
from model.loss import loss
from tests.model.hub.hub_models import (
    CONTEXT,
    END,
    MODELS,
    PAD,
    ROWS,
    byte_pairs,
    changed,
    logits,
    made,
    save,
)

hf.logging.set_verbosity_error()
hf.logging.disable_progress_bar()


@pytest.fixture(scope="module")
def there(tmp_path_factory):
    """(model, its folder), cached for each name."""
    home, known = tmp_path_factory.mktemp("there"), {}

    def folder(name):
        if name not in known:
            model = made(name)
            known[name] = model, save(model, home / name)
        return known[name]

    return folder


@pytest.fixture
def copy(there, tmp_path):
    """A copy of a folder, to be changed."""
    return lambda name: shutil.copytree(there(name)[1], tmp_path / "copy")


def texts():
    draw = torch.Generator().manual_seed(1)
    return [torch.randint(0, END, (2, n), generator=draw) for n in (17, 21)]


def opened(folder):
    return load_hf(folder)[0].eval()


def near(ours, theirs, most=1e-5):
    assert (ours - theirs).abs().max() <= most
    assert torch.equal(ours.argmax(-1), theirs.argmax(-1))


@pytest.mark.parametrize("name", MODELS)
def test_import_and_export_keep_logits(name, there, tmp_path):
    """Equal logits at every step, and the second import writes the same bytes as the first."""
    theirs, folder = there(name)
    expected, most = logits(theirs, *texts()), 5e-5 if name == "flan" else 1e-5
    import_run(folder, tmp_path / "run")
    run = load_run(tmp_path / "run")
    assert run.tokenizer.vocab_size == ROWS and run.step == 0
    near(logits(run.model, *texts()), expected, most)
    export_run(tmp_path / "run", "latest", tmp_path / "back", None)
    family = FAMILIES[theirs.config.model_type]
    back = getattr(hf, family.auto).from_pretrained(tmp_path / "back").eval()
    assert type(back) is type(theirs)
    near(logits(back, *texts()), expected, most)
    import_run(tmp_path / "back", tmp_path / "again")
    files = ("checkpoints/step-00000000/model.safetensors", "tokenizer.json", "config.yaml")
    for file in files:
        assert (tmp_path / "run" / file).read_bytes() == (tmp_path / "again" / file).read_bytes()
    words = "the cat's hat, 123  times\n"
    ids = hf.AutoTokenizer.from_pretrained(tmp_path / "back")(words, add_special_tokens=False)["input_ids"]
    assert ids == run.tokenizer.encode(words).tolist()


@pytest.mark.parametrize("name", [name for name in MODELS if "bert" not in name])
def test_greedy_ids(name, there):
    theirs, folder = there(name)
    source, prompt = texts()[0][:1], texts()[1][:1, :9]
    options = {"max_new_tokens": 50, "do_sample": False}
    theirs.generation_config.eos_token_id = None
    ours, start = opened(folder), theirs.config.pad_token_id
    if ours.kind == "decoder":
        ids = theirs.generate(prompt, attention_mask=torch.ones_like(prompt), **options)[0, 9:]
        columns = generate(ours, prompt.tolist(), max_new_tokens=50)
    else:
        ids = theirs.generate(source, attention_mask=torch.ones_like(source), **options)[0, 1:]
        columns = generate(ours, [[start]], sources=source.tolist(), max_new_tokens=50)
    assert [i for [i] in columns] == ids.tolist()
    assert len(ids) == 50


# another value for each key of config.json that logits depend on
# fmt: off
LLAMA_KEYS = {"num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 4, "hidden_act": "gelu",
    "rms_norm_eps": 0.1, "tie_word_embeddings": True, "num_hidden_layers": 1, "intermediate_size": 32,
    "rope_parameters": {"rope_type": "default", "rope_theta": 500.0}}
BOTH_SIDES = {"hidden_act": "relu", "layer_norm_eps": 0.1, "num_attention_heads": 8, "type_vocab_size": 3,
    "tie_word_embeddings": False, "max_position_embeddings": 32}
T5_KEYS = {"relative_attention_num_buckets": 16, "relative_attention_max_distance": 40, "d_kv": 8,
    "layer_norm_epsilon": 0.1, "num_layers": 2, "num_decoder_layers": 3, "num_heads": 2}
KNOBS = {
    "gpt2": {"n_head": 8, "activation_function": "gelu", "layer_norm_epsilon": 0.1, "n_inner": 64,
        "tie_word_embeddings": False, "n_layer": 1, "scale_attn_weights": False,
        "scale_attn_by_inverse_layer_idx": True},
    "llama, one key for two queries": LLAMA_KEYS | {"attention_bias": True, "mlp_bias": True},
    "llama3": {"rope_parameters": [{"factor": 2.0}, {"original_max_position_embeddings": 64},
        {"low_freq_factor": 3.0}, {"high_freq_factor": 2.0}, {"rope_type": "linear"}]},
    "llama, linear": {"rope_parameters": [{"factor": 2.0}]},
    "llama, yarn": {"rope_parameters": [{"factor": 8.0}, {"original_max_position_embeddings": 512},
        {"beta_fast": 8.0}, {"beta_slow": 0.2}, {"attention_factor": 1.5}, {"truncate": False}]},
    "mistral": {"sliding_window": 6},
    "qwen3, a window": LLAMA_KEYS | {"sliding_window": 6, "use_sliding_window": False},
    "nanochat": {"final_logit_softcapping": 5.0, "hidden_act": "gelu", "rms_norm_eps": 0.5,
        "num_attention_heads": 8, "rope_parameters": {"rope_type": "default", "rope_theta": 500.0}},
    "deepseek, yarn": {"q_lora_rank": None, "qk_nope_head_dim": 9, "v_head_dim": 5, "rms_norm_eps": 0.1,
        "kv_lora_rank": 15, "qk_rope_head_dim": 6, "rope_interleave": False, "first_k_dense_replace": 1,
        "rope_parameters": [{"mscale": 2.0}, {"mscale_all_dim": 0.5}, {"factor": 8.0}]},
    "bert": BOTH_SIDES | {"position_embedding_type": "relative_key", "is_decoder": True},
    "roberta": BOTH_SIDES | {"pad_token_id": 200},
    "t5": T5_KEYS | {"tie_word_embeddings": False, "scale_decoder_outputs": False,
        "feed_forward_proj": "gated-gelu"},
    "flan": T5_KEYS | {"feed_forward_proj": "gated-silu", "scale_decoder_outputs": True},
    "bart": {"decoder_attention_heads": 8, "activation_function": "relu", "scale_embedding": True,
        "tie_word_embeddings": False, "normalize_before": True, "encoder_ffn_dim": 64, "decoder_layers": 2},
}
# fmt: on


def mutations():
    for name, keys in KNOBS.items():
        for key, values in keys.items():
            for value in values if isinstance(values, list) else [values]:
                yield name, key, value, isinstance(values, list)


@pytest.mark.parametrize(("name", "key", "value", "within"), list(mutations()))
def test_no_key_is_ignored(name, key, value, within, there, copy):
    """Another value is refused or changes the logits."""
    theirs, _ = there(name)
    folder = copy(name)
    if within:
        value = json.loads((folder / "config.json").read_text())[key] | value
    implied = {"scale_decoder_outputs": ...} if key == "tie_word_embeddings" else {}
    changed(folder, **{key: value}, **implied)
    try:
        difference = (logits(opened(folder), *texts()) - logits(theirs, *texts())).abs().max()
    except HubError:
        return
    assert difference > 1e-4


def change_tensors(folder, **tensors):
    """Replace tensors; ... removes one."""
    path = folder / "model.safetensors"
    weights = load_file(path) | tensors
    save_file({name: weight for name, weight in weights.items() if weight is not ...}, path, {"format": "pt"})


NORM = "model.layers.1.input_layernorm.weight"
LLAMA = "llama, one key for two queries"
BAD_KEYS = [
    (LLAMA, dict(eos_token_id=None), "no end-of-text token: add eos_token"),
    (LLAMA, dict(model_type="mamba"), "model_type is 'mamba'; expected one of: gpt2, llama"),
    (LLAMA, dict(hidden_size=...), "config.json of a llama model has no hidden_size"),
    (LLAMA, dict(hidden_size="wide"), "hidden_size is 'wide'; expected an integer at least 1"),
    (LLAMA, dict(hidden_size=float("nan")), "hidden_size is nan; expected an integer at least 1"),
    (LLAMA, dict(rms_norm_eps="tiny"), "rms_norm_eps is 'tiny'; expected a number"),
    (LLAMA, dict(rope_parameters={"rope_theta": "abc"}), "is not valid for a llama model: "),
    (LLAMA, dict(rope_parameters={"rope_theta": 10**400}), "is not valid for a llama model: "),
    (LLAMA, dict(rope_scaling={"rope_type": "linear"}), "rope_scaling conflicts with rope_parameters"),
    (LLAMA, dict(rope_theta=500), "rope_theta conflicts with rope_parameters"),
    (LLAMA, dict(is_llama_config=False), "is_llama_config is False; only True is supported"),
    ("t5", dict(dense_act_fn="silu"), "dense_act_fn is 'silu', but feed_forward_proj implies 'relu'"),
    ("t5", dict(is_gated_act=True), "is_gated_act is True, but feed_forward_proj implies"),
    ("roberta", dict(pad_token_id=-5), "positions is left after pad_token_id .-5."),
    ("roberta", dict(pad_token_id=10**18, max_position_embeddings=10**18 + 70), "not describe a valid model"),
    (LLAMA, dict(num_hidden_layers=9999), "fewer tensors than config.json has layers .9999."),
    (LLAMA, dict(num_hidden_layers="two"), "num_hidden_layers is 'two'; expected an integer at least 1"),
    ("t5", dict(num_layers=9999), "fewer tensors than config.json has layers .9999."),
    ("qwen3", dict(num_hidden_layers=9999), "fewer tensors than config.json has layers .9999."),
    (LLAMA, dict(vocab_size=-1), "vocab_size is -1; expected an integer at least 1"),
    (LLAMA, dict(hidden_act="mish"), "hidden_act is 'mish'; expected one of: 'silu', 'gelu"),
    (LLAMA, dict(num_key_value_heads=3), "num_key_value_heads is 3; expected a divisor of"),
    (LLAMA, dict(sink_tokens=4), "sink_tokens is 4; this key is not supported"),
    (LLAMA, dict(quantization_config={"bits": 4}), "quantization_config is .* this key is not supported"),
    (LLAMA, dict(rope_parameters={"rope_type": "longrope"}), "rope_type is 'longrope'; expected default"),
    (LLAMA, dict(rope_parameters={"rope_type": "none"}), "rope_type is 'none'; expected default"),
    (LLAMA, dict(rope_parameters={"type": "linear"}), "rope .linear. needs a value for factor"),
    (LLAMA, dict(rope_parameters={"odd": 1}), "rope .none. has no option 'odd'"),
    (LLAMA, dict(partial_rotary_factor=0.5, rope_parameters=...), "partial_rotary_factor is 0.5"),
    ("gpt2", dict(add_cross_attention=True), "add_cross_attention is True; only False is supp"),
    ("deepseek", dict(first_k_dense_replace=1), r"mixtures of experts \(MoE\) are not"),
    ("deepseek", dict(attention_bias=True), "attention_bias is True; only False is supported"),
    ("qwen3, a window", dict(max_window_layers=1, layer_types=None), "layer_types is a mixture; only one"),
    ("bart", dict(encoder_ffn_dim=64), "encoder_ffn_dim is 64 and decoder_ffn_dim is 48; only equal"),
    ("bart", dict(encoder_attention_heads=8), "encoder_attention_heads is 8 and decoder_atten"),
    ("roberta", dict(max_position_embeddings=9), "none of 9 positions is left after pad_token_id"),
]
BAD_FILES = [
    (LLAMA, lambda f: (f / "config.json").unlink(), "copy has no config.json"),
    (LLAMA, lambda f: (f / "config.json").write_text("{"), "config.json cannot be read"),
    (LLAMA, lambda f: (f / "config.json").write_text("[]"), "config.json is not a JSON object"),
    (LLAMA, lambda f: (f / "model.safetensors").unlink(), "copy has no model.safetensors\n"),
    (LLAMA, lambda f: (f / "model.safetensors").rename(f / "pytorch_model.bin"), "bin is not supported"),
    (LLAMA, lambda f: (f / "model.safetensors").write_bytes(b"x" * 99), "model.safetensors cannot be read"),
    (LLAMA, lambda f: (f / "tokenizer.json").unlink(), "has no tokenizer.json; write one with transformers"),
    (LLAMA, lambda f: (f / "tokenizer.json").write_text("{}"), "tokenizer.json cannot be used"),
    (LLAMA, lambda f: change_tensors(f, **{NORM: ...}), f"lacks {NORM}"),
    (LLAMA, lambda f: change_tensors(f, odd=torch.ones(2)), "has an unknown tensor: odd"),
    (LLAMA, lambda f: change_tensors(f, **{NORM: torch.ones(31)}), rf"{NORM} is .31,.; .* implies .32,."),
    (
        LLAMA,
        lambda f: change_tensors(f, **{NORM: torch.ones(32).char()}),
        f"{NORM} is torch.int8; only float",
    ),
    ("gpt2", lambda f: change_tensors(f, **{"lm_head.weight": torch.ones(ROWS, 32)}), "lm_head.* differ"),
]


@pytest.mark.parametrize(("name", "wrong", "sentence"), BAD_KEYS + BAD_FILES)
def test_invalid_folders_are_refused(name, wrong, sentence, copy, tmp_path, capsys):
    folder = copy(name)
    _ = changed(folder, **wrong) if isinstance(wrong, dict) else wrong(folder)
    assert run_command(main, ["import", "--from", str(folder), "--to", str(tmp_path / "run")]) == 4
    message = capsys.readouterr().err
    assert re.search(sentence, message)
    assert message.count("\n") == 1 and {path.name for path in tmp_path.iterdir()} == {"copy"}


BAD_COMMANDS = {
    "import --from owner/name --to run": (4, "no such folder: owner/name, and .* downloaded"),
    "import --from nowhere --to run": (4, "no such folder: nowhere"),
    "import --from nowhere --to .": (2, "already exists; choose another folder"),
    "export --run nowhere --to out": (4, "nowhere"),
    "export --run nowhere --to .": (2, "already exists; choose another folder"),
}


@pytest.mark.parametrize("command", BAD_COMMANDS)
def test_invalid_commands_are_refused(command, tmp_path, monkeypatch, capsys):
    code, sentence = BAD_COMMANDS[command]
    monkeypatch.chdir(tmp_path)
    assert run_command(main, command.split()) == code
    assert re.search(sentence, capsys.readouterr().err)
    assert not list(tmp_path.iterdir())


def test_an_imported_run_cannot_be_resumed(copy, tmp_path):
    import_run(copy("gpt2"), tmp_path / "run")
    with pytest.raises(CheckpointError, match=f"was imported .* init_from={tmp_path}/run trains from it"):
        read_state(tmp_path / "run/checkpoints/step-00000000")


def test_sharded_weights(there, tmp_path):
    theirs, _ = there(LLAMA)
    folder = save(theirs, tmp_path / "shards", max_shard_size="20KB")
    assert len(list(folder.glob("*.safetensors"))) > 2
    near(logits(opened(folder), *texts()), logits(theirs, *texts()))
    index = folder / "model.safetensors.index.json"
    index.write_text(index.read_text().replace("model-00001-of", "../model-00001-of"))
    with pytest.raises(HubError, match="is not an index of files in its folder"):
        load_hf(folder)


def test_one_file_takes_precedence_over_shards(there, copy):
    """As in transformers; the index may be stale."""
    theirs, _ = there(LLAMA)
    folder = copy(LLAMA)
    (folder / "model.safetensors.index.json").write_text('{"weight_map": {"odd": "gone.safetensors"}}')
    near(logits(opened(folder), *texts()), logits(theirs, *texts()))


def test_a_pipe_does_not_block(copy):
    folder = copy(LLAMA)
    (folder / "config.json").unlink()
    os.mkfifo(folder / "config.json")
    with pytest.raises(HubError, match="has no config.json"):
        load_hf(folder)


def test_irrelevant_keys_are_ignored(there, copy):
    theirs, _ = there(LLAMA)
    folder = copy(LLAMA)
    changed(folder, is_llama_config=True, rope_interleaved=False, is_decoder=False, pruned_heads={})
    near(logits(opened(folder), *texts()), logits(theirs, *texts()))


def test_bart_without_head(there, copy):
    """As BartModel writes it; the bias of the head is then zero."""
    theirs, _ = there("bart")
    folder = copy("bart")
    path = folder / "model.safetensors"
    body = {n.removeprefix("model."): w for n, w in load_file(path).items() if n.startswith("model.")}
    save_file(body, path, {"format": "pt"})
    ours = opened(folder)
    assert not ours.head.map.bias.any()
    constant = theirs.final_logits_bias
    torch.testing.assert_close(logits(ours, *texts()), logits(theirs, *texts()) - constant, rtol=0, atol=1e-5)


def test_other_folders_are_left_alone(copy, tmp_path):
    (tmp_path / "run.draft").mkdir()
    (tmp_path / "run.draft/notes.txt").write_text("precious")
    before = set(tmp_path.iterdir())
    import_run(copy("gpt2"), tmp_path / "run")
    assert (tmp_path / "run.draft/notes.txt").read_text() == "precious"
    assert set(tmp_path.iterdir()) - before == {tmp_path / "run", tmp_path / "copy"}


def test_older_formats(there, copy, tmp_path):
    """GPT-2 without prefix, BERT with gamma and beta, rope_scaling."""
    folder = copy("gpt2")
    weights = load_file(folder / "model.safetensors")
    bare = {name.removeprefix("transformer."): weight for name, weight in weights.items()}
    bare |= {"h.0.attn.bias": torch.ones(1, 1, 9, 9)}
    save_file(bare, folder / "model.safetensors")
    changed(folder, n_ctx=CONTEXT, activation_function=..., tie_word_embeddings=..., n_inner=...)
    near(logits(opened(folder), *texts()), logits(there("gpt2")[0], *texts()))
    shutil.rmtree(folder)
    folder = copy("bert")
    weights = load_file(folder / "model.safetensors")
    old = {
        n.replace("Norm.weight", "Norm.gamma").replace("Norm.bias", "Norm.beta"): w
        for n, w in weights.items()
    }
    old["bert.pooler.dense.weight"] = torch.ones(2, 2)
    old["cls.predictions.decoder.bias"] = weights["cls.predictions.bias"].clone()
    save_file(old, folder / "model.safetensors")
    near(logits(opened(folder), *texts()), logits(there("bert")[0], *texts()))
    shutil.rmtree(folder)
    folder = copy("llama3")
    scaling = json.loads((folder / "config.json").read_text())["rope_parameters"]
    scaling["type"] = scaling.pop("rope_type")
    changed(folder, rope_parameters=..., rope_theta=scaling.pop("rope_theta"), rope_scaling=scaling)
    near(logits(opened(folder), *texts()), logits(there("llama3")[0], *texts()))


def test_half_precision_becomes_float32(there, tmp_path):
    folder = save(made("mistral").to(torch.bfloat16), tmp_path / "half")
    theirs = hf.MistralForCausalLM.from_pretrained(folder, dtype=torch.float32)
    near(logits(opened(folder), *texts()), logits(theirs.eval(), *texts()))


@pytest.mark.parametrize("name", ["gpt2", "flan"])
def test_loss_equals_that_of_transformers(name, there):
    theirs, folder = there(name)
    source, text = texts()
    ours = opened(folder)
    with torch.no_grad():
        if name == "gpt2":
            expected = theirs(text, labels=text).loss
            total, n = loss(ours.hidden(text[:, :-1]), ours.head, text[:, 1:])
        else:
            expected = theirs(source, labels=text).loss
            shifted = torch.cat([torch.full((2, 1), theirs.config.decoder_start_token_id), text[:, :-1]], 1)
            total, n = loss(ours.hidden(source, shifted), ours.head, text)
    assert (total / n).item() == pytest.approx(expected.item(), rel=1e-6)


@pytest.mark.parametrize("name", FAMILIES)
def test_defaults_are_those_of_transformers(name):
    hf_config = getattr(hf, FAMILIES[name].architecture).config_class()
    for key, (_, _, default) in FAMILIES[name].keys.items():
        if default not in (..., None) and key != "n_positions":
            assert getattr(hf_config, key, default) == default, key


def test_other_tokenizers_are_kept(copy, tmp_path, capsys):
    """WordPiece has no native form; it is kept, and its special tokens get native names."""
    folder = copy("bert")
    pieces = {"[PAD]": 0, "[UNK]": 1, "[SEP]": 2, "[MASK]": 3, "the": 4, "cat": 5, "##s": 6}
    words = Tokenizer(WordPiece(pieces, unk_token="[UNK]"))
    words.pre_tokenizer = BertPreTokenizer()
    words.add_special_tokens(["[PAD]", "[UNK]", "[SEP]", "[MASK]"])
    words.save(str(folder / "tokenizer.json"))
    changed(folder, eos_token_id=None, bos_token_id=None, pad_token_id=0)
    (folder / "tokenizer_config.json").write_text(
        '{"sep_token": "[SEP]", "mask_token": {"content": "[MASK]"}}'
    )
    import_run(folder, tmp_path / "run")
    assert "kept in its own format" in capsys.readouterr().out
    run = load_run(tmp_path / "run")
    assert run.tokenizer.specials == {"end": 2, "pad": 0, "mask": 3}
    assert run.tokenizer.encode("the cats [MASK]").tolist() == [4, 5, 6, 1, 1, 1]
    export_run(tmp_path / "run", "latest", tmp_path / "back", None)
    back = hf.AutoTokenizer.from_pretrained(tmp_path / "back")
    assert back("the cats [MASK]", add_special_tokens=False)["input_ids"] == [4, 5, 6, 3]
    assert (back.mask_token, back.eos_token) == ("[MASK]", "[SEP]")
    (folder / "tokenizer_config.json").write_text('{"do_lower_case": true}')  # as BERT was published
    assert load_hf(folder)[1].specials == {"end": 2, "pad": 0, "mask": 3}


def test_t5_sentinels_get_native_names(copy):
    folder = copy("t5")
    words = byte_pairs()
    words.add_special_tokens(["<extra_id_0>", "<extra_id_1>"])
    words.save(str(folder / "tokenizer.json"))
    specials = load_hf(folder)[1].specials
    assert specials == {"end": END, "start": PAD, "pad": PAD, "sentinel_0": PAD + 1, "sentinel_1": PAD + 2}
