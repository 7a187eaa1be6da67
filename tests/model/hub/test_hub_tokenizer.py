"""Special tokens survive import, fine-tuning and export: AutoTokenizer does the same before and after."""

import json
import os
from pathlib import Path

import pytest
import transformers as hf
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors
from tokenizers.trainers import BpeTrainer

from configs.compose import compose
from data.tokenizers.huggingface import SAMPLE
from data.tokenizers.tokenizer import NO_TEMPLATE
from model.checkpoint.load import load_run
from model.generate.prompt import encode_prompt
from model.hub.__main__ import export_run, import_run
from model.hub.convert import init_config, load_hf
from model.hub.files import HubError
from tests.model.hub.hub_models import build_hf, edit_config, save
from tests.training.runs import TEXT
from train import main
from training.sweep import launch

LLAMA3 = r"(?i:'s|'t|'re)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
CHAT = "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>{% endfor %}é"
TEXTS = ["", "a b", "  the cat's hat ", SAMPLE, "a <mask> b", "a  <mask>\t<mask>b", "x<|endoftext|> y", "hi<|eot_id|>"]
TEXTS += ["<|begin_of_text|>hi <|end_of_text|>", "<s>a</s> <unk>", "<|im_start|>user\nthe<|im_end|>\n<think> x"]
TEXTS += ["the cats [MASK] [UNK] x[SEP]", "<|end|><|pad|>", "e\u0301<think>e\u0301"]


def byte_bpe(pattern, before=(), after=(), **options):
    """A byte-level BPE with special tokens before or after the others."""
    tokenizer = Tokenizer(models.BPE(**options))
    split = [pre_tokenizers.Split(Regex(pattern), "isolated")] if pattern else []
    level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=pattern is None)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([*split, level]) if split else level
    tokenizer.decoder, alphabet = decoders.ByteLevel(), pre_tokenizers.ByteLevel.alphabet()
    kinds = {"initial_alphabet": alphabet, "special_tokens": list(before), "show_progress": False}
    tokenizer.train_from_iterator([TEXT], BpeTrainer(vocab_size=290, **kinds))
    tokenizer.add_special_tokens(list(after))
    return tokenizer


def gpt2():
    """As it was published: the names of special tokens are in no file."""
    return byte_bpe(None, after=["<|endoftext|>"]), {"tokenizer_config.json": {"model_max_length": 64}}


def llama3():
    names = ("<|begin_of_text|>", "<|end_of_text|>", "<|eot_id|>")
    tokenizer = byte_bpe(LLAMA3, after=names, ignore_merges=True)
    begin = [(names[0], tokenizer.token_to_id(names[0]))]
    template = processors.TemplateProcessing(f"{names[0]} $A", f"{names[0]} $A {names[0]}:1 $B:1", begin)
    tokenizer.post_processor = processors.Sequence([processors.ByteLevel(trim_offsets=False), template])
    settings = {"bos_token": names[0], "eos_token": names[2], "tokenizer_class": "PreTrainedTokenizerFast"}
    return tokenizer, {"tokenizer_config.json": settings, "chat_template.jinja": CHAT}


def roberta():
    tokenizer = byte_bpe(None, before=["<s>", "<pad>", "</s>", "<unk>"])
    tokenizer.add_special_tokens([AddedToken("<mask>", lstrip=True)])
    tokenizer.post_processor = processors.RobertaProcessing(("</s>", 2), ("<s>", 0))
    mask = {"content": "<mask>", "lstrip": True, "rstrip": False, "single_word": False, "normalized": False}
    roles = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>", "pad_token": "<pad>"}
    roles |= {"sep_token": "</s>", "cls_token": "<s>", "mask_token": mask}
    return tokenizer, {"tokenizer_config.json": {"model_max_length": 64}, "special_tokens_map.json": roles}


def qwen():
    names = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
    tokenizer = byte_bpe(LLAMA3, after=names)
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.add_tokens([AddedToken("<think>", normalized=False)])
    settings = {"pad_token": names[0], "eos_token": names[2], "bos_token": None, "chat_template": CHAT}
    settings |= {"additional_special_tokens": [*names[1:]], "tokenizer_class": "PreTrainedTokenizerFast"}
    return tokenizer, {"tokenizer_config.json": settings}


def wordpiece():
    names = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    pieces = [*names, *"abcdefghijklmnopqrstuvwxyz", "the", "cat", "##s", "hat", "##a", "line", "text"]
    vocabulary = {piece: i for i, piece in enumerate(pieces)}
    tokenizer = Tokenizer(models.WordPiece(vocabulary, unk_token="[UNK]"))
    tokenizer.normalizer, tokenizer.decoder = normalizers.BertNormalizer(), decoders.WordPiece()
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.add_special_tokens(names)
    tokenizer.post_processor = processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    return tokenizer, {"tokenizer_config.json": {"do_lower_case": True, "tokenizer_class": "BertTokenizer"}}


# {type: (model, tokenizer and files, keys of config.json as names of tokens, kind of our tokenizer)}
TYPES = {
    "gpt2": ("gpt2", gpt2, {"eos": "<|endoftext|>", "bos": "<|endoftext|>", "pad": None}, "bpe"),
    "llama3": (
        "llama3",
        llama3,
        {"eos": ["<|eot_id|>", "<|end_of_text|>"], "bos": "<|begin_of_text|>", "pad": None},
        "bpe",
    ),
    "roberta": ("roberta", roberta, {"eos": "</s>", "bos": "<s>", "pad": "<pad>"}, "hub"),
    "qwen": ("qwen3", qwen, {"eos": "<|im_end|>", "bos": None, "pad": None}, "hub"),
    "wordpiece": ("bert", wordpiece, {"eos": None, "bos": None, "pad": "[PAD]"}, "hub"),
}


def hf_folder(kind, folder, changes=None):
    """A folder of that type; `changes` are keys of tokenizer_config.json."""
    name, tokenizer_and_files, roles, _ = TYPES[kind]
    save(build_hf(name), folder)
    tokenizer, files = tokenizer_and_files()
    tokenizer.save(str(folder / "tokenizer.json"))
    files["tokenizer_config.json"] = files["tokenizer_config.json"] | (changes or {})
    for file, content in files.items():
        (folder / file).write_text(content if isinstance(content, str) else json.dumps(content), "utf-8")

    def id_of(name):
        return [*map(id_of, name)] if isinstance(name, list) else name and tokenizer.token_to_id(name)

    edit_config(folder, **{f"{role}_token_id": id_of(name) for role, name in roles.items()})
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": id_of(roles["eos"])}))
    return folder


def behavior(folder):
    """What a user of AutoTokenizer can see."""
    tokenizer = hf.AutoTokenizer.from_pretrained(folder)
    rows = [tokenizer(text, add_special_tokens=add)["input_ids"] for text in TEXTS for add in (True, False)]
    rows.append(tokenizer("a", "b")["input_ids"])
    decoded = [tokenizer.decode(row, skip_special_tokens=skip) for row in rows for skip in (True, False)]
    roles = tokenizer.special_tokens_map, tokenizer.extra_special_tokens, tokenizer.all_special_ids
    added = {i: str(token.__getstate__()) for i, token in tokenizer.added_tokens_decoder.items()}
    chat = [{"role": "user", "content": "the cat"}]
    chat = tokenizer.apply_chat_template(chat)["input_ids"] if tokenizer.chat_template else None
    return rows, decoded, roles, added, tokenizer.chat_template, chat


def eos_ids(folder):
    return [json.loads((folder / f"{name}.json").read_text()).get("eos_token_id")
            for name in ("config", "generation_config")]  # fmt: skip


@pytest.mark.parametrize("kind", TYPES)
def test_special_tokens_survive_import_and_export(kind, tmp_path):
    folder = hf_folder(kind, tmp_path / "hf")
    import_run(folder, tmp_path / "run")
    tokenizer = load_run(tmp_path / "run").tokenizer
    assert tokenizer.kind == TYPES[kind][3]
    export_run(tmp_path / "run", "latest", tmp_path / "back", None)
    assert behavior(tmp_path / "back") == behavior(folder)
    assert kind == "wordpiece" or eos_ids(tmp_path / "back") == eos_ids(folder)
    import_run(tmp_path / "back", tmp_path / "again")
    assert load_run(tmp_path / "again").tokenizer.state() == tokenizer.state()
    auto = hf.AutoTokenizer.from_pretrained(folder)
    for text in TEXTS:
        ids = auto(text, add_special_tokens=False, split_special_tokens=True)["input_ids"]
        assert tokenizer.encode(text).tolist() == ids, "to the run, special tokens in a text are text"


@pytest.mark.parametrize("kind", ["llama3", "roberta", "qwen"])
def test_special_tokens_survive_finetuning(kind, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("book.txt").write_text(TEXT * 3)
    folder = hf_folder(kind, tmp_path / "hf")
    overrides = ["init_from=hf", "data=text", "data.path=book.txt", "train.batch_size=4", "precision=fp32"]
    settings = ["train.steps=1", "eval.max_examples=2", "name=tuned"]
    assert launch(main, lambda o: compose(o, init_config), [*overrides, *settings]) == 0
    export_run("runs/tuned", "latest", tmp_path / "back", None)
    assert behavior(tmp_path / "back") == behavior(folder)
    assert eos_ids(tmp_path / "back") == eos_ids(folder)
