"""Imported models generate what they generate in transformers, with the template of their
tokenizer."""

import json

import pytest
import transformers as hf
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors

import sample
from configs.cli import run_command
from model.checkpoint import load_run
from model.hub.__main__ import import_run
from tests.model.hub.hub_models import END, PAD, build_hf, byte_pairs, save

GREEDY = ["--temperature", "0", "--max-new-tokens", "12"]
TEMPLATES = {
    "bert": "<pad> $A <eos>",
    "t5": "$A <eos>",
    "bart": "<eos> $A <eos>",
    "mistral": "<pad> $A",
}
PROMPT = "the cat's hat"


def unigram():
    """Tokens that begin with their space, and the special tokens of byte_pairs()."""
    vocabulary = [f"\u2581{word}" for word in ("the", "cat", "hat", "in")] + [
        "\u2581",
        *"'abcdehinorst",
    ]
    vocabulary += [f"\u2581w{n}" for n in range(END - len(vocabulary))] + ["<eos>", "<pad>"]
    tokenizer = Tokenizer(models.Unigram([(token, -2.0) for token in vocabulary], unk_id=PAD))
    tokenizer.pre_tokenizer, tokenizer.decoder = pre_tokenizers.Metaspace(), decoders.Metaspace()
    tokenizer.add_special_tokens(["<eos>", "<pad>"])
    return tokenizer


TOKENIZERS = {"byte pairs": byte_pairs, "unigram": unigram}


@pytest.fixture(params=TOKENIZERS)
def imported(request, tmp_path):
    """imported(name): model and tokenizer of transformers; tmp_path/run is their import."""

    def imported(name):
        model, backend = build_hf(name), TOKENIZERS[request.param]()
        backend.add_special_tokens(["<mask>"])
        ids = [(token, backend.token_to_id(token)) for token in ("<eos>", "<pad>")]
        backend.post_processor = processors.TemplateProcessing(TEMPLATES[name], special_tokens=ids)
        save(model, tmp_path / "hf")
        roles = {"eos_token": "<eos>", "pad_token": "<pad>", "mask_token": "<mask>"}
        tokenizer = hf.PreTrainedTokenizerFast(tokenizer_object=backend, **roles)
        tokenizer.save_pretrained(tmp_path / "hf")
        import_run(tmp_path / "hf", tmp_path / "run")
        return model, tokenizer

    return imported


@pytest.fixture
def run(tmp_path, capsys):
    def run(*args):
        capsys.readouterr()
        options = ["--run", str(tmp_path / "run"), "--precision", "fp32", *args]
        assert run_command(lambda: sample.main(options)) == 0
        return capsys.readouterr().out

    return run


def test_masks_are_filled_as_in_transformers(imported, run, tmp_path):
    model, tokenizer = imported("bert")
    inputs = tokenizer(f"{PROMPT} <mask> in", return_tensors="pt")["input_ids"]
    place = inputs[0].tolist().index(tokenizer.mask_token_id)
    probs, best = (top.tolist() for top in model(inputs).logits[0, place].softmax(-1).topk(5))
    name = load_run(tmp_path / "run").tokenizer.decode_with_specials
    text, predictions = run("--prompt", f"{PROMPT} [MASK] in").splitlines()
    expected = (f"{name([i])!r} {prob:.3f}" for i, prob in zip(best, probs, strict=True))
    assert predictions == f"  [MASK] 1: {', '.join(expected)}"
    inputs[0, place] = best[0]
    assert text == name(inputs[0, 1:-1].tolist()), "without the template"


def hf_generate(model, tokenizer):
    """(ids of the prompt, ids that transformers generates greedily from it, which may begin with
    them)"""
    inputs = tokenizer(PROMPT, return_tensors="pt", return_token_type_ids=False)
    output = model.generate(**inputs, max_new_tokens=12, do_sample=False)
    return inputs["input_ids"][0].tolist(), output[0].tolist()


@pytest.mark.parametrize("name", ["t5", "bart"])
def test_encoder_decoders_generate_as_in_transformers(name, imported, run):
    model, tokenizer = imported(name)
    _, [_, *ids] = hf_generate(model, tokenizer)
    row = json.loads(run("--source", PROMPT, "--max-new-tokens", "12", "--json"))
    assert row["ids"] == ids
    assert row["text"] == tokenizer.decode(ids, skip_special_tokens=True)


def test_decoders_generate_as_in_transformers(imported, run):
    """With the template's prefix, without its suffix; no space is lost where the generated text
    begins."""
    model, tokenizer = imported("mistral")
    prompt, output = hf_generate(model, tokenizer)
    printed, row = (
        run("--prompt", PROMPT, *GREEDY),
        json.loads(run("--prompt", PROMPT, *GREEDY, "--json")),
    )
    assert row["ids"] == output[len(prompt) :]
    expected = tokenizer.decode(output, skip_special_tokens=True)
    assert printed == f"{expected}\n" == f"{PROMPT}{row['text']}\n"
    stop = f" {row['text'].split(' ')[1]}" if " " in row["text"] else row["text"][3:6]
    stopped = json.loads(run("--prompt", PROMPT, *GREEDY, "--json", "--stop", stop))["text"]
    assert stopped == row["text"][: row["text"].index(stop)]
