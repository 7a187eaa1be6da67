"""Imported models say what they say in transformers: texts stand in the frame that they have learned."""

import json

import pytest
import transformers as hf
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors

import sample
from configs.cli import run_command
from model.checkpoint.load import load_run
from model.hub.__main__ import export_run, import_run
from tests.model.hub.hub_models import END, PAD, byte_pairs, made, save

hf.logging.set_verbosity_error()
hf.logging.disable_progress_bar()
GREEDY = ["--temperature", "0", "--max-new-tokens", "12"]
FRAMES = {"bert": "<pad> $A <eos>", "t5": "$A <eos>", "bart": "<eos> $A <eos>", "mistral": "<pad> $A"}
PROMPT = "the cat's hat"


def pieces():
    """Each with the space before it, and the special tokens of the other."""
    words = [f"\u2581{word}" for word in ("the", "cat", "hat", "in")] + ["\u2581", *"'abcdehinorst"]
    words += [f"\u2581w{n}" for n in range(END - len(words))] + ["<eos>", "<pad>"]
    tokenizer = Tokenizer(models.Unigram([(word, -2.0) for word in words], unk_id=PAD))
    tokenizer.pre_tokenizer, tokenizer.decoder = pre_tokenizers.Metaspace(), decoders.Metaspace()
    tokenizer.add_special_tokens(["<eos>", "<pad>"])
    return tokenizer


TOKENIZERS = {"bpe": byte_pairs, "hub": pieces}


@pytest.fixture(params=TOKENIZERS)
def imported(request, tmp_path):
    """(model, tokenizer) of transformers; in tmp_path is the run that they become."""

    def imported(name):
        model, words = made(name), TOKENIZERS[request.param]()
        words.add_special_tokens(["<mask>"])
        ids = [(token, words.token_to_id(token)) for token in ("<eos>", "<pad>")]
        words.post_processor = processors.TemplateProcessing(FRAMES[name], special_tokens=ids)
        save(model, tmp_path / "theirs")
        roles = {"eos_token": "<eos>", "pad_token": "<pad>", "mask_token": "<mask>"}
        tokenizer = hf.PreTrainedTokenizerFast(tokenizer_object=words, **roles)
        tokenizer.save_pretrained(tmp_path / "theirs")
        import_run(tmp_path / "theirs", tmp_path / "run")
        assert load_run(tmp_path / "run").tokenizer.kind == request.param
        return model, tokenizer

    return imported


@pytest.fixture
def say(tmp_path, capsys):
    def said(*words):
        capsys.readouterr()
        assert run_command(sample.main, ["--run", str(tmp_path / "run"), "--precision", "fp32", *words]) == 0
        return capsys.readouterr().out

    return said


def test_masks_are_filled_as_there(imported, say, tmp_path):
    model, tokenizer = imported("bert")
    asked = tokenizer(f"{PROMPT} <mask> in", return_tensors="pt")["input_ids"]
    place = asked[0].tolist().index(tokenizer.mask_token_id)
    shares, best = (found.tolist() for found in model(asked).logits[0, place].softmax(-1).topk(5))
    named = load_run(tmp_path / "run").tokenizer.show
    text, guesses = say("--prompt", f"{PROMPT} [MASK] in").splitlines()
    expected = (f"{named([i])!r} {share:.3f}" for i, share in zip(best, shares, strict=True))
    assert guesses == f"  [MASK] 1: {', '.join(expected)}"
    asked[0, place] = best[0]
    assert text == named(asked[0, 1:-1].tolist()), "what stands around it is none of it"


@pytest.mark.parametrize("name", ["t5", "bart"])
def test_sources_are_answered_as_there(name, imported, say):
    model, tokenizer = imported(name)
    asked = tokenizer(PROMPT, return_tensors="pt")["input_ids"]
    ids = model.generate(asked, attention_mask=asked != -1, max_new_tokens=12, do_sample=False)[
        0, 1:
    ].tolist()
    answer = json.loads(say("--source", PROMPT, "--max-new-tokens", "12", "--json"))
    assert answer["ids"] == ids
    assert answer["text"] == tokenizer.decode(ids, skip_special_tokens=True)


def test_a_prompt_goes_on_as_there(imported, say):
    """With what stands before a text, without what stands behind; and no space is lost between the two."""
    model, tokenizer = imported("mistral")
    asked = tokenizer(PROMPT, return_tensors="pt")["input_ids"]
    whole = model.generate(asked, attention_mask=asked != -1, max_new_tokens=12, do_sample=False)[0].tolist()
    shown, told = say("--prompt", PROMPT, *GREEDY), json.loads(say("--prompt", PROMPT, *GREEDY, "--json"))
    assert told["ids"] == whole[asked.shape[1] :]
    assert shown == tokenizer.decode(whole, skip_special_tokens=True) + "\n" == PROMPT + told["text"] + "\n"
    stop = f" {told['text'].split(' ')[1]}" if " " in told["text"] else told["text"][3:6]
    cut = json.loads(say("--prompt", PROMPT, *GREEDY, "--json", "--stop", stop))["text"]
    assert cut == told["text"][: told["text"].index(stop)]


@pytest.mark.parametrize("name", FRAMES)
def test_the_frame_goes_there_and_back(name, imported, tmp_path):
    _, tokenizer = imported(name)
    export_run(tmp_path / "run", "latest", tmp_path / "back", None)
    back = hf.AutoTokenizer.from_pretrained(tmp_path / "back")
    assert back(PROMPT)["input_ids"] == tokenizer(PROMPT)["input_ids"]
    import_run(tmp_path / "back", tmp_path / "again")
    for file in ("checkpoints/step-00000000/model.safetensors", "tokenizer.json", "config.yaml"):
        assert (tmp_path / "run" / file).read_bytes() == (tmp_path / "again" / file).read_bytes()


def test_what_goes_on_learning_here_is_asked_as_it_learns(imported, tmp_path):
    imported("bart")
    opened = load_run(tmp_path / "run")
    assert sample.frame_of(opened, True) == [[END], [END]]
    tuned = opened._replace(config=opened.config | {"init_from": str(tmp_path / "run")})
    assert sample.frame_of(tuned, True) == [[], []]
