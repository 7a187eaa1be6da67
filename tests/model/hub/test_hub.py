"""The hub: folders of transformers become runs, and runs such folders, with equal logits."""

import json
import re
import shutil
import sys
from functools import cache

import pytest
import torch
import transformers as hf
from safetensors.torch import load_file, save_file

import sample
from configs.cli import run_command
from configs.errors import HubError
from model import feedforward
from model.hub.__main__ import import_run, main
from model.hub.convert import load_hf
from model.hub.families import FAMILIES
from model.hub.spec import ACTIVATIONS
from tests.model.hub.hub_models import (
    AUTO,
    END,
    MODELS,
    PAD,
    ROWS,
    YARN,
    build_hf,
    byte_pairs,
    edit_config,
    logits,
    randomize,
    save,
    there_and_back,
)
from tests.parts import thin


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """saved(name): (model of transformers, its folder), cached."""
    root = tmp_path_factory.mktemp("saved")

    @cache
    def saved(name):
        model = build_hf(name)
        return model, save(model, root / name)

    return saved


@pytest.fixture
def copy(saved, tmp_path):
    """copy(name): a copy of that folder, to be changed."""
    return lambda name: shutil.copytree(saved(name)[1], tmp_path / "copy", dirs_exist_ok=True)


def random_tokens():
    generator = torch.Generator().manual_seed(1)
    return [torch.randint(0, END, (2, n), generator=generator) for n in (17, 21)]


def load(folder):
    model, *_ = load_hf(folder)
    return model.eval()


def assert_equal_logits(model, hf_model, tolerance=1e-5):
    difference = logits(model, *random_tokens()) - logits(hf_model, *random_tokens())
    assert difference.abs().max() <= tolerance


ONE_EACH = {name.partition(",")[0]: name for name in MODELS}


def assert_equal_padded_logits(model, hf_model):
    """Where padding hides the end of some rows; an encoder also reads token types."""
    text, answer = random_tokens()
    visible = torch.arange(17) < torch.tensor([[17], [9]])
    inputs = {"input_ids": text.where(visible, PAD), "attention_mask": visible.long()}
    if model.kind == "encoder":
        types = None
        if n_types := getattr(hf_model.config, "type_vocab_size", 0):
            types = (torch.arange(17) > 8).long().expand(2, -1) % n_types
            inputs["token_type_ids"] = types
        expected = hf_model(**inputs).logits[visible]
        actual = model(inputs["input_ids"], types=types, visible=visible)[visible]
    else:
        expected = hf_model(**inputs, decoder_input_ids=answer).logits
        actual = model(inputs["input_ids"], answer, source_visible=visible)
    assert (actual - expected).abs().max() <= 5e-5


@torch.no_grad()
@pytest.mark.parametrize("name", thin(MODELS, ONE_EACH.values()))
def test_import_and_export_keep_logits(name, saved, tmp_path):
    """Equal logits at every step, and the second import writes the same bytes as the first."""
    hf_model, folder = saved(name)
    tolerance = 5e-5 if name == "t5, flan" else 1e-5
    run, folder = there_and_back(shutil.copytree(folder, tmp_path / "hf"))
    assert run.tokenizer.vocab_size == ROWS and run.step == 0
    assert_equal_logits(run.model, hf_model, tolerance)
    if run.model.kind != "decoder":
        assert_equal_padded_logits(run.model, hf_model)
    back = AUTO[run.model.kind].from_pretrained(folder).eval()
    assert type(back) is type(hf_model)
    assert_equal_logits(back, hf_model, tolerance)
    import_run(folder, tmp_path / "again")
    for file in ("checkpoints/step-00000000/model.safetensors", "tokenizer.json", "config.yaml"):
        assert (tmp_path / "run" / file).read_bytes() == (tmp_path / "again" / file).read_bytes()


def difference_from_transformers(hf_class, folder):
    """Of the logits, relative to the largest; None if the folder is refused, here or there."""
    try:
        model = load(folder)
    except HubError:
        return None
    try:
        hf_model = hf_class.from_pretrained(folder, dtype=torch.float32)
        expected = logits(hf_model, *random_tokens())
    except Exception:  # of many types, for values that it has not expected
        return None
    return ((logits(model, *random_tokens()) - expected).abs().max() / expected.abs().max()).item()


# other values of a setting: those of its type, and other names of functions
WORDS = ["gelu", "relu", "gated-gelu", "gated-silu", "relative_key", "linear", "odd"]
OTHERS = {
    bool: lambda b: [not b],
    int: lambda i: [i + 1, 2 * i, i // 2],
    float: lambda f: [f + 0.5, 2 * f],
    str: lambda text: WORDS,
    dict: lambda d: [d | {key: other} for key in d for other in others(d[key])],
    type(None): lambda none: [True, False, 2],
}


def others(value):
    return OTHERS.get(type(value), lambda value: [])(value)


def n_keys_that_act(name, saved, copy, every):
    """Keys that a family reads, or all of config.json, with other values, null, and removed: the
    logits of transformers, or a refusal. Returns how many changes are imported."""
    hf_model, _ = saved(name)
    path = copy(name) / "config.json"
    written = json.loads(path.read_text())
    keys = {*FAMILIES[written["model_type"]].keys} | {"is_decoder", "layer_types"}
    if every:
        keys |= {*written}
    differences = {}
    for key in sorted(keys):
        removed = [None, ...] if key in written else []
        for other in [*others(written.get(key, getattr(hf_model.config, key, None))), *removed]:
            changed = {k: v for k, v in (written | {key: other}).items() if v is not ...}
            path.write_text(json.dumps(changed))
            differences[key, str(other)] = difference_from_transformers(type(hf_model), path.parent)
    imported = {change: d for change, d in differences.items() if d is not None}
    assert {change: d for change, d in imported.items() if not d <= 1e-5} == {}
    return len(imported)


# a class of each kind; the faults tests have all
@pytest.mark.parametrize("name", ["gpt2", "llama, llama3", "deepseek_v3", "bert"])
def test_no_key_is_ignored(name, saved, copy):
    assert n_keys_that_act(name, saved, copy, every=False) > 5


@pytest.mark.faults
@pytest.mark.parametrize("name", ONE_EACH.values())
def test_every_key_acts_as_in_transformers(name, saved, copy):
    assert n_keys_that_act(name, saved, copy, every=True) > 20


FINETUNED = {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16}
PUBLISHED = [
    (
        "llama, one key for two queries",
        dict(max_position_embeddings=..., max_sequence_length=2048, pad_token_id=-1),
    ),
    (
        "llama, yarn",
        dict(rope_scaling=FINETUNED | {"finetuned": True}, _attn_implementation="sdpa"),
    ),
    (
        "llama, linear",
        {"transformers.js_config": {"dtype": "q4"}, "unsloth_version": "2024.9"}
        | dict(is_llama_config=True, rope_interleaved=False, is_decoder=False, pruned_heads={}),
    ),
    ("mistral", dict(attention_bias=False, head_dim=8, layer_types=["sliding_attention"] * 2)),
    (
        "mistral",
        dict(sliding_window=None, layer_types=["full_attention"] * 2, unsloth_fixed=True),
    ),
    ("nanochat", YARN),  # whose norm cancels the factor
    ("qwen2", dict(use_mrope=False, layer_types=...)),
    ("gemma", dict(hidden_activation=None)),
    ("gemma", dict(hidden_act=..., hidden_activation="gelu_pytorch_tanh")),
    (
        "phi3",
        dict(attention_bias=False, embd_pdrop=0.0, resid_pdrop=0.0, partial_rotary_factor=...)
        | dict(original_max_position_embeddings=32),
    ),
    ("stablelm", dict(partial_rotary_factor=..., hidden_dropout=0.0)),
    (
        "starcoder2",
        dict(num_key_value_heads=..., mlp_type="default", norm_type="layer_norm")
        | dict(activation_function="gelu", attention_softmax_in_fp32=True),
    ),
    ("granite", dict(residual_multiplier=1, logits_scaling=...)),
    ("cohere", dict(rope_theta=..., logit_scale=..., model_max_length=131072)),
    ("gpt2", dict(n_ctx=64, activation_function=..., tie_word_embeddings=..., n_inner=...)),
    ("gpt_neox", dict(rotary_pct=0.75, rotary_emb_base=500)),
    ("bloom", dict(hidden_size=..., n_embed=48, n_head=..., num_attention_heads=6)),
    # a pattern instead of layer_types, and a key for each theta
    ("gemma2", dict(layer_types=..., hidden_act="gelu", cache_implementation="hybrid")),
    (
        "gemma3_text",
        dict(layer_types=..., rope_parameters=..., sliding_window_pattern=2, rope_theta=5000.0)
        | dict(rope_local_base_freq=100.0, rope_scaling={"rope_type": "linear", "factor": 4.0}),
    ),
    (
        "modernbert",
        dict(layer_types=..., rope_parameters=..., global_attn_every_n_layers=3)
        | dict(global_rope_theta=5000.0, local_rope_theta=100.0),
    ),
    (
        "smollm3",
        dict(layer_types=..., no_rope_layers=..., no_rope_layer_interval=2, max_window_layers=28),
    ),
    ("smollm3", dict(no_rope_layers=[0, 0, 0])),
    ("qwen3_moe", dict(mlp_only_layers=None)),
    # names that transformers maps, and keys that it leaves alone
    ("gpt2", dict(n_embd=..., hidden_size=32, _model_name_or_path="x")),
    ("mixtral", dict(num_local_experts=..., num_experts=5)),
    ("t5, flan", dict(feed_forward_proj="gated-gelu_pytorch_tanh", prefix="summarize: ")),
]


@pytest.mark.parametrize(("name", "keys"), PUBLISHED)
def test_keys_of_published_files(name, keys, saved, copy):
    """With rope as it was written until transformers 5."""
    hf_model, _ = saved(name)
    folder = copy(name)
    rope = json.loads((folder / "config.json").read_text()).get("rope_parameters", {})
    older = {key: rope[key] for key in ("rope_theta", "partial_rotary_factor") if key in rope}
    if older:
        older |= {"rope_parameters": ..., "rope_scaling": None}
    edit_config(folder, **older | keys)
    assert difference_from_transformers(type(hf_model), folder) <= 1e-5


def test_every_name_of_an_activation_is_known():
    """And no other function of transformers takes its place."""
    values = torch.linspace(-12, 12, 99)
    ours = {kind: function(values) for kind, function in feedforward.ACTIVATIONS.items()}
    for name in hf.activations.ACT2FN:
        expected = hf.activations.ACT2FN[name](values)
        same = {kind for kind in ours if (ours[kind] - expected).abs().max() <= 1e-5}
        assert same == ({ACTIVATIONS[name]} if name in ACTIVATIONS else set()), name


def change_tensors(folder, change):
    """Replace the tensors {name: tensor} by change(tensors); ... removes one."""
    path = folder / "model.safetensors"
    tensors = change(load_file(path))
    kept = {name: tensor for name, tensor in tensors.items() if tensor is not ...}
    save_file(kept, path, {"format": "pt"})


def edit(folder, name, change):
    """A file, a tensor or a key of config.json; ... removes it."""
    path = folder / name
    if path.exists() and change is ...:
        path.unlink()
    elif path.exists():
        path.write_text(change)
    elif "." in name:
        change_tensors(folder, lambda tensors: tensors | {name: change})
    else:
        edit_config(folder, **{name: change})


EXPERT = "model.layers.1.block_sparse_moe.experts.3.w1.weight"
NORM = "model.layers.1.input_layernorm.weight"
LLAMA = "llama, one key for two queries"
TIED = "llama, one key for all, tied"
BAD_FOLDERS = [
    (LLAMA, dict(model_type="mamba"), "mamba is not supported; did you mean one of: .*llama"),
    (LLAMA, dict(model_type="qwen2_moe"), "supported; did you mean one of: qwen3_moe, qwen2$"),
    (LLAMA, dict(hidden_size=...), "has the shape .*; config.json needs "),
    (LLAMA, dict(hidden_act="mish"), 'hidden_act is "mish"; supported: .*"silu", "swish"'),
    (LLAMA, dict(rms_norm_eps="a"), "config.json: Validation error for field 'rms_norm_eps'"),
    (LLAMA, dict(quantization_config={"bits": 4}), "quantization_config is set; only weights in"),
    (LLAMA, dict(sliding_window=5), "sliding_window is 5, and layer_types is .*; a model of this"),
    (
        LLAMA,
        dict(rope_parameters={"rope_type": "dynamic", "rope_theta": 1e4, "factor": 2.0}),
        "rope_type.kind is 'dynamic'; choose one of: none, linear",
    ),
    ("deepseek_v3", dict(first_k_dense_replace=1), "first_k_dense_replace: only models with dense"),
    ("mistral", dict(layer_types=["full_attention"] * 2), "layer_types is .*full.*; a model of"),
    ("phi3", dict(rope_scaling={"type": "su"}, rope_parameters=...), "longrope"),
    (
        "qwen3, windows",
        dict(layer_types=["sliding_attention"]),
        "config.json: .*num_hidden_layers. .3. must be equal to the number of .layer_types. .1.",
    ),
    (
        "modernbert",
        dict(local_rope_theta=None, rope_parameters=...),
        "rope_theta is None; expected a number above 0",
    ),
    ("smollm3", dict(no_rope_layers=[1]), "transformers cannot load it: list index out of range"),
    ("olmo", dict(clip_qkv=99.0), "clip_qkv is 99.0; supported: null"),
    (
        "roberta",
        dict(max_position_embeddings=9),
        "model.context_length is -26.; expected an integer at least 1",
    ),
    # what only the logits show, by the keys that differ
    ("bert", dict(is_decoder=True), "logits differ .* an export would change: is_decoder is true$"),
    ("mixtral", dict(num_experts_per_tok=1), "the logits differ from those of transformers"),
    ("qwen3_moe", dict(norm_topk_prob=False), "logits differ .*norm_topk_prob is false"),
    (
        "bart",
        dict(encoder_ffn_dim=64),
        "decoder_ffn_dim is 48, and another key sets ffn.d_ff to 64; only",
    ),
    # files and tensors
    (LLAMA, {"config.json": "{"}, "config.json cannot be read"),
    (LLAMA, {"config.json": ...}, "is no model in a Hugging Face format: it has no config.json"),
    (LLAMA, {"model.safetensors": ...}, "cannot load it: Error no file named model.safetensors"),
    (LLAMA, {"model.safetensors": "{"}, "transformers cannot load it: .* header too small"),
    (LLAMA, {"tokenizer.json": ...}, "copy: AutoTokenizer: Couldn't instantiate the backend tok"),
    (LLAMA, {"tokenizer.json": "{}"}, "copy: AutoTokenizer: 'added_tokens'"),
    (LLAMA, {"eos_token_id": None, "generation_config.json": ...}, "no end-of-text token: add eos"),
    (LLAMA, {NORM: ...}, f"{NORM} is missing, 1 tensors in all"),
    (
        LLAMA,
        {NORM: torch.ones(31)},
        rf"{NORM} has the shape \[31\]; config.json needs \[32\]",
    ),
    ("bert", {"cls.predictions.bias": ...}, "cls.predictions.decoder.bias is missing, 1 tensors"),
    ("bart", {"lm_head.weight": torch.ones(ROWS, 32)}, "lm_head.weight has no counterpart, 1"),
    ("qwen3_moe", dict(mlp_only_layers=[1]), "model.layers.1.mlp.down_proj.weight is missing, 3"),
    ("mixtral", {EXPERT: ...}, "transformers cannot load it: .*conversion of the weights"),
]


@pytest.mark.parametrize(("name", "changes", "sentence"), BAD_FOLDERS)
def test_invalid_folders_are_refused(name, changes, sentence, copy, tmp_path, capsys):
    folder = copy(name)
    for changed, change in changes.items():
        edit(folder, changed, change)
    command = ["import", "--from", str(folder), "--to", str(tmp_path / "run")]
    assert run_command(lambda: main(command)) == 4
    message = capsys.readouterr().err
    assert re.search(sentence, message)
    assert message.count("\n") == 1
    assert {path.name for path in tmp_path.iterdir()} == {"copy"}


BAD_COMMANDS = [
    ("import --from owner/name --to run", 4, "owner/name is no folder, and cannot be downloaded"),
    ("import --from nowhere --to run", 4, "nowhere is no model in a Hugging Face format"),
    ("import --from ~nosuchuser/x --to run", 2, "cannot expand ~ in ~nosuchuser/x"),
    ("import --from nowhere --to .", 2, "already exists; choose another folder"),
    ("export --run nowhere --to out", 4, "nowhere"),
    ("export --run nowhere --to out --family gpt3", 2, "invalid choice: 'gpt3' .*gpt2.*llama"),
]


@pytest.mark.parametrize(("command", "code", "sentence"), BAD_COMMANDS)
def test_invalid_commands_are_refused(command, code, sentence, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert run_command(lambda: main(command.split())) == code
    assert re.search(sentence, capsys.readouterr().err)
    assert not list(tmp_path.iterdir())


def test_sharded_weights(saved, tmp_path):
    """Of one file and shards, the file is read, as in transformers; the index may be stale."""
    hf_model, single = saved(LLAMA)
    folder = save(hf_model, tmp_path / "shards", max_shard_size="20KB")
    assert len(list(folder.glob("*.safetensors"))) > 2
    assert_equal_logits(load(folder), hf_model)
    index = folder / "model.safetensors.index.json"
    index.write_text(index.read_text().replace("model-00001-of", "model-00009-of"))
    with pytest.raises(HubError, match="No such file or directory: .*model-00009-of"):
        load_hf(folder)
    shutil.copy(single / "model.safetensors", folder)
    assert_equal_logits(load(folder), hf_model)


@torch.no_grad()
@pytest.mark.parametrize("name", ["bert", "roberta", "xlm-roberta", "distilbert", "electra"])
def test_an_encoder_without_head_gives_vectors(name, saved, tmp_path, monkeypatch, capsys):
    """As sentence-transformers publishes it; and exported, it has none again."""
    monkeypatch.chdir(tmp_path)
    body = saved(name)[0].base_model
    _, folder = there_and_back(save(body, tmp_path / "hf"))
    back = hf.AutoModel.from_pretrained(folder).eval()
    assert type(back) is type(body) and back.config.architectures == [type(body).__name__]

    texts = ["the cat", "that hat is the other cat's"]
    inputs = [torch.tensor([byte_pairs().encode(text).ids]) for text in texts]
    hidden = [body(ids).last_hidden_state[0] for ids in inputs]
    assert (back(inputs[1]).last_hidden_state[0] - hidden[1]).abs().max() <= 1e-5
    for pooling, pool in (("mean", lambda rows: rows.mean(0)), ("first", lambda rows: rows[0])):
        prompts = [word for text in texts for word in ("--prompt", text)]
        sample.main(["--run", "run", "--embed", pooling, *prompts])
        rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
        assert [row["text"] for row in rows] == texts
        vectors = torch.tensor([row["embedding"] for row in rows])
        torch.testing.assert_close(vectors, torch.stack([*map(pool, hidden)]), atol=1e-5, rtol=0)
    with pytest.raises(ValueError, match="without a head; --embed gives vectors"):
        sample.main(["--run", "run", "--prompt", "the [MASK]"])


CLASSIFIERS = [
    ("bert", "BertForSequenceClassification"),
    ("roberta", "RobertaForTokenClassification"),
    ("distilbert", "DistilBertForQuestionAnswering"),
    ("electra", "ElectraForPreTraining"),
    ("modernbert", "ModernBertForSequenceClassification"),
]


@torch.no_grad()
@pytest.mark.parametrize(("name", "architecture"), CLASSIFIERS)
def test_the_body_of_a_classifier_is_imported(name, architecture, saved, tmp_path, capsys):
    """Without its head, which is said."""
    classifier = randomize(getattr(hf, architecture)(saved(name)[0].config))
    model = load(save(classifier, tmp_path / "hf"))
    tokens, _ = random_tokens()
    expected = classifier.base_model(tokens).last_hidden_state
    assert (model.hidden(tokens) - expected).abs().max() <= 1e-5
    warnings = capsys.readouterr().err
    assert re.search(
        "tensors that .*Model does not have are left out: (classifier|qa_|discr)", warnings
    )
    assert ("the pooler is left out" in warnings) == (architecture[:5] in ("BertF", "Rober"))


def old_gpt2(tensors):
    bare = {name.removeprefix("transformer."): weight for name, weight in tensors.items()}
    return bare | {"h.0.attn.bias": torch.ones(1, 1, 9, 9)}


def old_bert(tensors):
    """With gamma and beta, the head's bias elsewhere, and a second head."""
    tensors["cls.predictions.decoder.bias"] = tensors.pop("cls.predictions.bias")
    more = {"bert.pooler.dense.weight": torch.ones(2, 2), "classifier.weight": torch.ones(2, 2)}
    for name, weight in tensors.items():
        older = name.replace("Norm.weight", "Norm.gamma").replace("Norm.bias", "Norm.beta")
        more[older] = weight
    return more


def old_neox(tensors):
    return tensors | {"gpt_neox.layers.1.attention.masked_bias": torch.ones(1)}


def headless_bart(tensors):
    """As BartModel writes it; the bias of the head is then zero, as in a new model."""
    parts = {name.partition("model.")[2]: weight for name, weight in tensors.items()}
    return {name: weight for name, weight in parts.items() if name}


OLDER = [("gpt2", old_gpt2), ("bert", old_bert), ("gpt_neox", old_neox), ("bart", headless_bart)]


@pytest.mark.parametrize(("name", "older"), OLDER)
def test_older_names_of_tensors(name, older, saved, copy):
    folder = copy(name)
    change_tensors(folder, older)
    assert_equal_logits(load(folder), saved(name)[0])


def half(table):
    return table.bfloat16().float()


def another(table):
    return torch.randn(table.shape, generator=torch.Generator().manual_seed(3)) / 3


@pytest.mark.parametrize("change", [half, another])
@pytest.mark.parametrize("name", ["pegasus", "marian"])
def test_positions_are_those_of_the_file(name, change, saved, copy):
    """Pegasus and Marian compute a table of sines only where a file has none."""
    hf_model, _ = saved(name)
    folder = copy(name)
    tables = {name: change(w) for name, w in hf_model.state_dict().items() if "positions" in name}
    change_tensors(folder, lambda tensors: tensors | tables)
    changed = type(hf_model).from_pretrained(folder).eval()
    run, back = there_and_back(folder)
    assert_equal_logits(run.model, changed)
    assert_equal_logits(type(hf_model).from_pretrained(back).eval(), changed)


def test_sines_that_a_file_lacks(saved, copy):
    folder = copy("pegasus")
    change_tensors(
        folder, lambda tensors: {n: w for n, w in tensors.items() if "positions" not in n}
    )
    assert_equal_logits(load(folder), saved("pegasus")[0])


@pytest.mark.parametrize("name", ["bart", "mbart", "pegasus", "marian"])
def test_untied_embeddings(name, saved, tmp_path):
    """Encoder and decoder may have one embedding, whatever the third copy is; not one each."""
    hf_model, _ = saved(name)
    config = type(hf_model.config).from_dict(
        hf_model.config.to_dict() | {"tie_word_embeddings": False}
    )
    untied = randomize(type(hf_model)(config))
    with pytest.raises(HubError, match="decoder.embed_tokens.weight has values of its own"):
        load_hf(save(untied, tmp_path / "two"))
    sides = untied.model
    sides.decoder.embed_tokens.weight.data = sides.encoder.embed_tokens.weight.data.clone()
    run, back = there_and_back(save(untied, tmp_path / "one"))
    assert_equal_logits(run.model, untied)
    assert_equal_logits(type(hf_model).from_pretrained(back).eval(), untied)


@pytest.mark.parametrize("name", ["gated-gelu", "gated-swish", "gated-gelu_python", "silu"])
def test_activations_of_t5(name, tmp_path):
    hf_model = build_hf("t5", feed_forward_proj=name)
    run, back = there_and_back(save(hf_model, tmp_path / "hf"))
    assert_equal_logits(run.model, hf_model)
    assert_equal_logits(hf.T5ForConditionalGeneration.from_pretrained(back).eval(), hf_model)


def test_weights_of_torch_alone(saved, copy):
    """They are read by transformers, with weights_only."""
    folder = copy(LLAMA)
    torch.save(load_file(folder / "model.safetensors"), folder / "pytorch_model.bin")
    (folder / "model.safetensors").unlink()
    assert_equal_logits(load(folder), saved(LLAMA)[0])


def test_a_balance_loss_is_that_of_transformers(saved, copy):
    """It has one only where the logits of the router are returned."""
    folder = copy("mixtral")
    for returned, balance in ((False, 0.0), (True, 0.02)):
        edit_config(folder, output_router_logits=returned)
        assert load_hf(folder)[2].ffn["balance_loss"] == balance


def test_a_folder_needs_transformers(saved, monkeypatch):
    monkeypatch.setitem(sys.modules, "transformers", None)  # as if it were not installed
    with pytest.raises(HubError, match="formats need transformers .*; pip install -e '..hub.'"):
        load_hf(saved(LLAMA)[1])


def test_half_precision_becomes_float32(tmp_path):
    """Before a family's table changes any value."""
    folder = save(build_hf("deepseek_v3, yarn").to(torch.bfloat16), tmp_path / "half")
    hf_model = hf.DeepseekV3ForCausalLM.from_pretrained(folder, dtype=torch.float32)
    assert_equal_logits(load(folder), hf_model.eval())


OF_BERT = {"pad": PAD + 1, "end": PAD + 2, "mask": PAD + 3, "start": PAD + 4}
OF_T5 = {"end": END, "start": PAD, "pad": PAD, "sentinel_0": PAD + 1, "sentinel_1": PAD + 2}
SPELLED = [
    ("bert", ["[PAD]", "[SEP]", "[MASK]", "[CLS]"], OF_BERT),
    ("t5", ["<extra_id_0>", "<extra_id_1>"], OF_T5),  # and generation_config.json has the others
]


@pytest.mark.parametrize(("name", "names", "specials"), SPELLED)
def test_special_tokens_by_their_usual_spelling(name, names, specials, copy):
    """As BERT was published: no file names them."""
    folder, tokenizer = copy(name), byte_pairs()
    tokenizer.add_special_tokens(names)
    tokenizer.save(str(folder / "tokenizer.json"))
    edit_config(folder, eos_token_id=None, bos_token_id=None, pad_token_id=None)
    assert load_hf(folder)[1].specials == specials
