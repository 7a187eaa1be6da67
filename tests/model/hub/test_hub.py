"""The hub: folders of transformers become runs, and runs such folders, with equal logits."""

import json
import re
import shutil
import sys
from functools import cache
from pathlib import Path

import pytest
import torch
import transformers as hf
from safetensors.torch import load_file, save_file

import sample
from configs.errors import HubError
from model.hub.__main__ import export_run, import_run, main
from model.hub.convert import load_hf
from tests.model.hub.hub_models import (
    AUTO,
    END,
    MODELS,
    PAD,
    ROWS,
    build_hf,
    byte_pairs,
    edit_config,
    logits,
    save,
    there_and_back,
)
from tests.parts import randomize, refused, thin


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
    """Equal logits at every step, and the second import is the same as the first."""
    hf_model, folder = saved(name)
    tolerance = 5e-5 if name == "t5, flan" else 1e-5
    model, tokenizer, folder = there_and_back(shutil.copytree(folder, tmp_path / "hf"))
    assert_equal_logits(model, hf_model, tolerance)
    if model.kind != "decoder":
        assert_equal_padded_logits(model, hf_model)
    back = AUTO[model.kind].from_pretrained(folder).eval()
    assert type(back) is type(hf_model)
    assert_equal_logits(back, hf_model, tolerance)
    again, tokens, _ = load_hf(folder)
    torch.testing.assert_close(again.state_dict(), model.state_dict(), rtol=0, atol=0)
    assert tokens.state() == tokenizer.state() and tokens.vocab_size == ROWS


OWN_ACTIVATION = dict(dense_act_fn=..., is_gated_act=...)
PUBLISHED = {
    "mistral": dict(sliding_window=None, layer_types=["full_attention"] * 2, unsloth_fixed=True),
    "gemma": dict(hidden_act=..., hidden_activation="gelu_pytorch_tanh"),
    "phi3": dict(embd_pdrop=0.0, partial_rotary_factor=..., original_max_position_embeddings=32),
    # a pattern instead of layer_types
    "gemma2": dict(layer_types=..., hidden_act="gelu", cache_implementation="hybrid"),
    "smollm3": dict(no_rope_layers=[0, 0, 0]),
    "t5": OWN_ACTIVATION | dict(feed_forward_proj="silu", prefix="summarize: "),
    "t5, flan": OWN_ACTIVATION | dict(feed_forward_proj="gated-gelu_python"),
}


@pytest.mark.parametrize("name, keys", PUBLISHED.items())
def test_keys_of_published_files(name, keys, saved, copy):
    """With rope as it was written until transformers 5."""
    folder = copy(name)
    rope = json.loads((folder / "config.json").read_text()).get("rope_parameters", {})
    older = {key: rope[key] for key in ("rope_theta", "partial_rotary_factor") if key in rope}
    if older:
        older |= {"rope_parameters": ..., "rope_scaling": None}
    edit_config(folder, **older | keys)
    hf_model = type(saved(name)[0]).from_pretrained(folder, dtype=torch.float32)
    assert_equal_logits(load(folder), hf_model, 5e-5)


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


NORM = "model.layers.1.input_layernorm.weight"
LLAMA = "llama, one key for two queries"
CLASSIFIER = dict(architectures=["BertForSequenceClassification"])
SEVERAL = "regression and several labels for a text are not"
BAD_FOLDERS = [
    (LLAMA, dict(model_type="mamba"), "mamba is not supported; did you mean one of: .*llama"),
    (LLAMA, dict(hidden_size=...), "has the shape .*; config.json needs "),
    (LLAMA, dict(hidden_act="mish"), 'hidden_act is "mish"; supported: .*"silu", "swish"'),
    (LLAMA, dict(rms_norm_eps="a"), "config.json: Validation error for field 'rms_norm_eps'"),
    (LLAMA, dict(quantization_config={"bits": 4}), "quantization_config is set; only floating"),
    (
        LLAMA,
        dict(rope_parameters={"rope_type": "dynamic", "rope_theta": 1e4, "factor": 2.0}),
        "rope_type.kind is 'dynamic'; choose one of: none, linear",
    ),
    # what only the logits show, by the keys that differ
    (
        "bert",
        dict(is_decoder=True),
        "logits or windows differ .* an export would change: is_decoder is true$",
    ),
    (
        "bart",
        dict(encoder_ffn_dim=64),
        "decoder_ffn_dim is 48, and another key sets ffn.d_ff to 64; only",
    ),
    (LLAMA, {"config.json": "{"}, "config.json cannot be read"),
    (
        LLAMA,
        {"model.safetensors": ...},
        "cannot load the weights: Error no file named model.safetensors",
    ),
    (LLAMA, {"tokenizer.json": ...}, "copy: AutoTokenizer: Couldn't instantiate the backend tok"),
    (LLAMA, {"eos_token_id": None, "generation_config.json": ...}, "no end-of-text token: add eos"),
    (LLAMA, {NORM: ...}, f"{NORM} is missing .tensors: 1"),
    (
        "bart",
        {"lm_head.weight": torch.ones(ROWS, 32)},
        "config.json has no place for lm_head.weight",
    ),
    ("bert", CLASSIFIER | dict(id2label={0: "score"}), SEVERAL),
    ("bert", CLASSIFIER | dict(problem_type="multi_label_classification"), SEVERAL),
    ("bert", CLASSIFIER | dict(problem_type="regression"), SEVERAL),
]


@pytest.mark.parametrize("name, changes, sentence", BAD_FOLDERS)
def test_invalid_folders_are_refused(name, changes, sentence, copy, tmp_path, command):
    folder = copy(name)
    for changed, change in changes.items():
        edit(folder, changed, change)
    places = ["--from", str(folder), "--to", str(tmp_path / "run")]
    message = command(main, "import", *places, code=4).err
    assert re.search(sentence, message)
    assert message.count("\n") == 1
    assert {path.name for path in tmp_path.iterdir()} == {"copy"}


BAD_COMMANDS = [
    (
        "import --from owner/name --to run",
        4,
        "owner/name is not a folder, and cannot be downloaded",
    ),
    ("import --from nowhere --to run", 4, "nowhere is not a model in a Hugging Face format"),
    ("import --from nowhere --to .", 2, "already exists; choose another name"),
    ("export --run nowhere --to out --family gpt3", 2, "invalid choice: 'gpt3' .*gpt2.*llama"),
]


@pytest.mark.parametrize("typed, code, sentence", BAD_COMMANDS)
def test_invalid_commands_are_refused(typed, code, sentence, tmp_path, monkeypatch, command):
    monkeypatch.chdir(tmp_path)
    assert re.search(sentence, command(main, *typed.split(), code=code).err)
    assert not list(tmp_path.iterdir())


@torch.no_grad()
def test_an_encoder_without_head_gives_vectors(saved, tmp_path, monkeypatch, capsys):
    """As sentence-transformers publishes it."""
    monkeypatch.chdir(tmp_path)
    body = saved("bert")[0].base_model
    import_run(save(body, tmp_path / "hf"), tmp_path / "run")
    text = "that hat is the other cat's"
    [hidden] = body(torch.tensor([byte_pairs().encode(text).ids])).last_hidden_state
    for pooling, vector in (("mean", hidden.mean(0)), ("first", hidden[0])):
        sample.main(["--run", "run", "--embed", pooling, "--prompt", text])
        row = json.loads(capsys.readouterr().out)
        assert row["text"] == text
        torch.testing.assert_close(torch.tensor(row["embedding"]), vector, atol=1e-5, rtol=0)
    with refused("without a head; --embed gives vectors"):
        sample.main(["--run", "run", "--prompt", "the [MASK]"])


NORMALIZED = [{"type": f"sentence_transformers.models.{name}"} for name in ("Pooling", "Normalize")]
POOLINGS = {  # {what the folder says: what the vector is}
    '{"pooling_mode_cls_token": true, "pooling_mode_max_tokens": false}': "first",
    '{"pooling_mode": "mean", "include_prompt": true}': "mean",
    '{"pooling_mode_cls_token": true, "pooling_mode_mean_tokens": true}': "the imported model has pooling_mode_cls_token and ",
    '{"pooling_mode_max_tokens": true}': "the imported model has pooling_mode_max_tokens pooling",
}


@torch.no_grad()
@pytest.mark.parametrize("written", POOLINGS)
def test_vectors_of_sentence_transformers(written, saved, tmp_path, monkeypatch, capsys):
    """Also from the folder itself, and from an export."""
    monkeypatch.chdir(tmp_path)
    save(saved("bert")[0].base_model, tmp_path / "hf")
    Path("hf/1_Pooling").mkdir()
    Path("hf/1_Pooling/config.json").write_text(written)
    Path("hf/modules.json").write_text(json.dumps(NORMALIZED))
    import_run("hf", Path("run"))
    export_run("run", "latest", Path("out"), None)

    def vector(place, pooling):
        sample.main(["--run", place, "--embed", pooling, "--prompt", "that hat"])
        return torch.tensor(json.loads(capsys.readouterr().out)["embedding"])

    if POOLINGS[written].startswith("the"):
        with refused(POOLINGS[written]):
            vector("run", "auto")
        return
    plain = vector("run", POOLINGS[written])
    for place in ("run", "hf", "out"):
        torch.testing.assert_close(vector(place, "auto"), plain / plain.norm())


CLASSIFIERS = {
    "bert": "BertForMultipleChoice",
    "roberta": "RobertaForTokenClassification",
    "distilbert": "DistilBertForQuestionAnswering",
    "electra": "ElectraForPreTraining",
}


USUAL = ["bert, untied", "roberta", "distilbert", "electra", "modernbert, biases", "gpt2", "gemma2"]


@torch.no_grad()
@pytest.mark.parametrize("name", thin(MODELS, USUAL))
def test_classifiers(name, tmp_path):
    """Logits and the names of classes survive import and export."""
    config = build_hf(name).config
    if config.is_encoder_decoder:
        return
    config.id2label = {0: "no", 1: "may be", 2: "yes"}
    classes = hf.MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING
    theirs = randomize(classes[type(config)](config))
    model, _, folder = there_and_back(save(theirs, tmp_path / "hf"))
    back = hf.AutoModelForSequenceClassification.from_pretrained(folder).eval()
    assert type(back) is type(theirs)
    assert [*back.config.id2label.values()] == model.classes == ["no", "may be", "yes"]
    tokens, _ = random_tokens()
    expected = theirs(tokens).logits
    ours = model(tokens)[:, 0 if model.kind == "encoder" else -1]
    torch.testing.assert_close([back(tokens).logits, ours], [expected] * 2)


@torch.no_grad()
@pytest.mark.parametrize("name, architecture", CLASSIFIERS.items())
def test_the_body_of_a_classifier_is_imported(name, architecture, saved, tmp_path, capsys):
    """Without its head, which is said; and exported, it has none."""
    classifier = randomize(getattr(hf, architecture)(saved(name)[0].config))
    body = classifier.base_model
    model, _, folder = there_and_back(save(classifier, tmp_path / "hf"))
    back = hf.AutoModel.from_pretrained(folder).eval()
    assert type(back) is type(body) and back.config.architectures == [type(body).__name__]
    tokens, _ = random_tokens()
    expected = body(tokens).last_hidden_state
    for hidden in (model.hidden(tokens), back(tokens).last_hidden_state):
        assert (hidden - expected).abs().max() <= 1e-5
    warnings = capsys.readouterr().err
    left_out = "tensors that .*Model does not have are left out: (classifier|qa_|discr)"
    assert re.search(left_out, warnings)
    assert ("the pooler is dropped" in warnings) == (architecture[:5] in ("BertF", "Rober"))


def headless_bart(tensors):
    """As BartModel writes it; the bias of the head is then zero, as in a new model."""
    parts = {name.partition("model.")[2]: weight for name, weight in tensors.items()}
    return {name: weight for name, weight in parts.items() if name}


def without_sines(tensors):
    return {name: weight for name, weight in tensors.items() if "positions" not in name}


OLDER = [("bart", headless_bart), ("pegasus", without_sines)]


@pytest.mark.parametrize("name, older", OLDER)
def test_older_names_of_tensors(name, older, saved, copy):
    folder = copy(name)
    change_tensors(folder, older)
    assert_equal_logits(load(folder), saved(name)[0])


def test_a_folder_needs_transformers(saved, monkeypatch):
    monkeypatch.setitem(sys.modules, "transformers", None)  # as if it were not installed
    with refused("formats need transformers .*; pip install -e '..hub.'", HubError):
        load_hf(saved(LLAMA)[1])


def test_half_precision_becomes_float32(tmp_path):
    """Before a family's table changes any value."""
    folder = save(build_hf("gemma").to(torch.bfloat16), tmp_path / "half")
    hf_model = hf.GemmaForCausalLM.from_pretrained(folder, dtype=torch.float32)
    assert_equal_logits(load(folder), hf_model.eval())


OF_BERT = {"pad": PAD + 1, "end": PAD + 2, "mask": PAD + 3, "start": PAD + 4}
OF_T5 = {"end": END, "start": PAD, "pad": PAD, "sentinel_0": PAD + 1, "sentinel_1": PAD + 2}
SPELLED = [
    ("bert", ["[PAD]", "[SEP]", "[MASK]", "[CLS]"], OF_BERT),
    ("t5", ["<extra_id_0>", "<extra_id_1>"], OF_T5),  # and generation_config.json has the others
]


@pytest.mark.parametrize("name, names, specials", SPELLED)
def test_special_tokens_by_their_usual_spelling(name, names, specials, copy):
    """As BERT was published: no file names them."""
    folder, tokenizer = copy(name), byte_pairs()
    tokenizer.add_special_tokens(names)
    tokenizer.save(str(folder / "tokenizer.json"))
    edit_config(folder, eos_token_id=None, bos_token_id=None, pad_token_id=None)
    assert load_hf(folder)[1].specials == specials
