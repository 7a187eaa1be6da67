"""Imported models generate what they generate in transformers, with the template of their
tokenizer."""

import json
import shutil
from pathlib import Path

import pytest
import transformers as hf
from tokenizers import processors

import sample
from configs.errors import HubError
from data.tokenizers.huggingface import drop_template
from model.checkpoint import load_run
from model.hub.__main__ import export_run, import_run
from model.pretrained import load_pretrained
from model.weights import read_json
from tests.model.hub.hub_models import END, PAD, build_hf, byte_pairs, edit_config, save, unigrams

TEMPLATES = {"t5": "$A <eos>", "bart": "<eos> <pad> $A <pad> <eos>", "mistral": "<pad> $A"}
PROMPT = "the cat's hat"


def unigram():
    """Tokens that begin with their space, and the special tokens of byte_pairs()."""
    words = ["", "the", "cat", "hat", "in", *(f"w{n}" for n in range(END - 18))]
    vocabulary = [*"'abcdehinorst", *(f"\u2581{word}" for word in words), "<eos>", "<pad>"]
    tokenizer = unigrams(vocabulary, PAD)
    tokenizer.add_special_tokens(["<eos>", "<pad>"])
    return tokenizer


TOKENIZERS = {"byte pairs": byte_pairs, "unigram": unigram}
HF, RUN, BACK = Path("hf"), Path("run"), Path("back")


@pytest.fixture(params=TOKENIZERS)
def imported(request, tmp_path, monkeypatch):
    """imported(name): model and tokenizer of transformers, which are in HF; RUN is their import."""
    monkeypatch.chdir(tmp_path)

    def imported(name):
        model, backend = build_hf(name), TOKENIZERS[request.param]()
        ids = [(token, backend.token_to_id(token)) for token in ("<eos>", "<pad>")]
        template = processors.TemplateProcessing(TEMPLATES[name], special_tokens=ids)
        backend.post_processor = processors.Sequence([processors.ByteLevel(), template])
        save(model, HF)
        roles = {"eos_token": "<eos>", "pad_token": "<pad>"}
        tokenizer = hf.PreTrainedTokenizerFast(tokenizer_object=backend, **roles)
        tokenizer.save_pretrained(HF)
        import_run(HF, RUN)
        return model, tokenizer

    return imported


@pytest.fixture
def run(command):
    return lambda *args: command(sample.main, "--run", str(RUN), "--precision", "fp32", *args).out


def generated(run, *args):
    return json.loads(run(*args, "--max-new-tokens", "12", "--json"))


def hf_generate(model, tokenizer):
    """(what transformers begins with, the ids that it generates greedily)"""
    inputs = tokenizer(PROMPT, return_tensors="pt", return_token_type_ids=False)
    [output] = model.generate(**inputs, max_new_tokens=12, do_sample=False).tolist()
    n = 1 if model.config.is_encoder_decoder else inputs["input_ids"].shape[1]
    return output[:n], output[n:]


def test_generation_config_is_obeyed_and_kept(imported, run):
    """It alone has the start and the end, as transformers writes them; and forces two tokens."""
    imported("bart")
    config = {"decoder_start_token_id": 7, "eos_token_id": [END, 9], "bos_token_id": 3}
    config |= {"forced_bos_token_id": 8, "forced_eos_token_id": END, "num_beams": 1, "top_k": 5}
    (HF / "generation_config.json").write_text(json.dumps(config))
    ids = dict(decoder_start_token_id=5, eos_token_id=4, bos_token_id=1)
    edit_config(HF, **ids)
    shutil.rmtree(RUN)
    import_run(HF, RUN)
    assert load_run(RUN).tokenizer.end_ids == [END, 9]

    model = hf.BartForConditionalGeneration.from_pretrained(HF).eval()
    tokenizer = hf.AutoTokenizer.from_pretrained(HF)
    start, expected = hf_generate(model, tokenizer)
    assert (start, expected[0], expected[-1]) == ([7], 8, END)
    assert generated(run, "--source", PROMPT)["ids"] == expected

    export_run(RUN, "latest", BACK, None)
    assert read_json(BACK / "generation_config.json") == config
    assert ids.items() <= read_json(BACK / "config.json").items()

    tuned = load_pretrained(str(HF)).tokenizer
    drop_template(tuned)  # training forces no tokens
    assert not {"forced_start", "forced_end"} & tuned.specials.keys()
    dropped = {"forced_bos_token_id": None, "forced_eos_token_id": None}
    assert json.loads(tuned.files["generation_config.json"]) == config | dropped


@pytest.mark.parametrize("name", ["mistral", "bart"])
def test_generation_rules_are_obeyed(name, imported, run):
    """A flag takes the place of its rule."""
    model, tokenizer = imported(name)
    plain = hf_generate(model, tokenizer)
    rules = {"no_repeat_ngram_size": 2, "suppress_tokens": [7, 8], "repetition_penalty": 3.0}
    model.generation_config.update(**rules)
    model.generation_config.save_pretrained(HF)
    shutil.rmtree(RUN)
    import_run(HF, RUN)
    for penalty, flags in ((1.0, ["--repetition-penalty", "1"]), (3.0, [])):
        model.generation_config.repetition_penalty = penalty
        expected = hf_generate(model, tokenizer)
        row = generated(run, "--prompt", PROMPT, "--temperature", "0", *flags)
        assert row["ids"] == expected[1]
    assert expected != plain


def test_older_folders_have_the_rules_in_config_json(imported, capsys):
    """Which are not obeyed is said. Forced tokens may be a list, and must exist."""
    imported("bart")
    (HF / "generation_config.json").unlink()
    rules = {"repetition_penalty": 1.3, "bad_words_ids": [[PAD]], "min_length": 3}
    rules |= {"num_beams": 4, "length_penalty": 2.0, "forced_eos_token_id": [END]}
    edit_config(HF, **rules)
    capsys.readouterr()
    import_run(HF, Path("again"))
    [said] = [line for line in capsys.readouterr().err.splitlines() if "generation" in line]
    assert said.startswith(
        "warning: settings of generation that are ignored: num_beams 4, length_penalty 2.0;"
    )
    run = load_run(Path("again"))
    assert rules.items() <= json.loads(run.tokenizer.files["generation_config.json"]).items()
    export_run(Path("again"), "latest", BACK, None)
    assert rules.items() <= read_json(BACK / "generation_config.json").items()
    edit_config(HF, forced_bos_token_id=9999)
    with pytest.raises(HubError, match="forced_bos_token_id is 9999; the model has 300 tokens"):
        import_run(HF, Path("odd"))


@pytest.mark.parametrize("name", ["mistral", "t5", "bart"])
def test_models_generate_as_in_transformers(name, imported, run):
    """A decoder with the template's prefix, without its suffix; no space is lost where the generated
    text begins."""
    model, tokenizer = imported(name)
    start, ids = hf_generate(model, tokenizer)
    args = ["--prompt", PROMPT, "--temperature", "0"]
    row = generated(run, *args)
    assert row["ids"] == ids
    expected = tokenizer.decode(start + ids, skip_special_tokens=True)
    assert expected == PROMPT * (name == "mistral") + row["text"]
    assert run(*args, "--max-new-tokens", "12") == f"{expected}\n"
