"""Special tokens survive import, fine-tuning and export: AutoTokenizer does the same before and
after."""

import json
import random
from pathlib import Path

import pytest
import transformers as hf
from tokenizers import (
    AddedToken,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
)

from configs.errors import TokenizerError
from data.tokenizers.huggingface import NO_CLASS
from data.tokenizers.imported import HubTokenizer
from data.tokenizers.plain import ByteTokenizer
from data.tokenizers.tokenizer import NO_TEMPLATE
from model.checkpoint import load_run
from model.generate.text import encode_prompt
from model.hub.__main__ import export_run, import_run
from model.hub.convert import export, load_hf
from model.weights import read_json
from tests.data.test_huggingface import NOT_POSSESSIVE, SAMPLE, byte_pairs
from tests.model.hub.hub_models import PLAIN, build_hf, edit_config, save, there_and_back, unigrams
from tests.model.hub.test_hub_export import build
from tests.parts import refused
from tests.training.runs import TEXT, train

TURN = "<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>"
CHAT = f"{{% for m in messages %}}{TURN}{{% endfor %}}é"
MASKED = ["a <mask> b", "a  <mask>\t<mask>b", " <mask> ", "[MASK]  [MASK] x"]
TEXTS = ["", " the cat's hat ", SAMPLE, *MASKED, "x<|endoftext|> y", "e\u0301<think>e\u0301"]
TEXTS += ["<|begin_of_text|>hi <|end_of_text|>", "<s>a</s> <unk>", "hi<|eot_id|>"]
TEXTS += ["<|im_start|>user\nthe<|im_end|>\n<think> x"]

LLAMA = "llama, one key for two queries"
ENDS, BEGIN = ["<|eot_id|>", "<|end_of_text|>"], "<|begin_of_text|>"


def bpe(*special, **options):
    return byte_pairs(special=special, **options)


def llama3():
    tokenizer = bpe(BEGIN, *reversed(ENDS), pattern=NOT_POSSESSIVE)
    texts = f"{BEGIN} $A", f"{BEGIN} $A {BEGIN}:1 $B:1"
    template = processors.TemplateProcessing(*texts, [(BEGIN, tokenizer.token_to_id(BEGIN))])
    byte_level = processors.ByteLevel(trim_offsets=False)
    tokenizer.post_processor = processors.Sequence([byte_level, template])
    settings = {"bos_token": BEGIN, "eos_token": ENDS[0], **PLAIN}
    return tokenizer, {"tokenizer_config.json": settings, "chat_template.jinja": CHAT}


def roberta():
    tokenizer = bpe("<s>", "<pad>", "</s>", "<unk>", first=True)
    tokenizer.add_special_tokens([AddedToken("<mask>", lstrip=True)])
    tokenizer.post_processor = processors.RobertaProcessing(("</s>", 2), ("<s>", 0))
    roles = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>", "pad_token": "<pad>"}
    roles |= {"mask_token": {"content": "<mask>", "lstrip": True}}
    roles |= {"sep_token": "</s>", "cls_token": "<s>"}
    settings = {"model_max_length": 64}
    return tokenizer, {"tokenizer_config.json": settings, "special_tokens_map.json": roles}


def qwen():
    names = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
    tokenizer = bpe(*names, pattern=NOT_POSSESSIVE, normalizer=normalizers.NFC())
    tokenizer.add_tokens([AddedToken("<think>", normalized=False)])
    tokenizer.post_processor = processors.ByteLevel()
    roles = {"pad_token": names[0], "eos_token": names[2], "additional_special_tokens": names[1:]}
    settings = roles | {"bos_token": None, "chat_template": CHAT} | PLAIN
    return tokenizer, {"tokenizer_config.json": settings}


def wordpiece():
    names = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    pieces = enumerate([*names, "a", "b", "x", "the", "cat", "##s", "hat", "##a", "line", "text"])
    tokenizer = Tokenizer(models.WordPiece({piece: i for i, piece in pieces}, unk_token="[UNK]"))
    tokenizer.normalizer, tokenizer.decoder = normalizers.BertNormalizer(), decoders.WordPiece()
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.add_special_tokens(names)
    tokenizer.post_processor = processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    settings = {"do_lower_case": True, "tokenizer_class": "BertTokenizer"}
    return tokenizer, {"tokenizer_config.json": settings}


TYPES = {  # {type: (model, tokenizer and files, ids in config.json)}
    "llama3": ("llama, llama3", llama3, dict(eos_token_id=[292, 291], bos_token_id=290)),
    "roberta": ("roberta", roberta, dict(eos_token_id=2, bos_token_id=0, pad_token_id=1)),
    "qwen": ("qwen3", qwen, dict(eos_token_id=292, bos_token_id=None)),
    "wordpiece": ("bert", wordpiece, dict(eos_token_id=None, bos_token_id=None, pad_token_id=0)),
}


def hf_folder(kind, folder, settings=None, **changes):
    """A folder of that type. `settings` change tokenizer_config.json, `changes` config.json."""
    name, tokenizer_and_files, ids = TYPES[kind]
    tokenizer, files = tokenizer_and_files()
    save(build_hf(name), folder, tokenizer)
    files["tokenizer_config.json"] |= settings or {}
    edit_config(folder, **{"pad_token_id": None} | ids | changes)
    files["generation_config.json"] = {"eos_token_id": ids["eos_token_id"]}
    for file, content in files.items():
        text = content if isinstance(content, str) else json.dumps(content)
        (folder / file).write_text(text, "utf-8")
    return folder


def behavior(folder, template=True):
    """What a user of AutoTokenizer can see, and the ends of a text in both config files."""
    tokenizer = hf.AutoTokenizer.from_pretrained(folder)
    adds = (template, False)
    rows = [tokenizer(text, add_special_tokens=add)["input_ids"] for text in TEXTS for add in adds]
    rows.append(tokenizer("a", "b", add_special_tokens=template)["input_ids"])
    decoded = [tokenizer.decode(row) for row in rows]
    decoded += [tokenizer.decode(row, skip_special_tokens=True) for row in rows]
    roles = tokenizer.special_tokens_map, tokenizer.extra_special_tokens, tokenizer.all_special_ids
    added = {i: str(token.__getstate__()) for i, token in tokenizer.added_tokens_decoder.items()}
    chat, template = [{"role": "user", "content": "the cat"}], tokenizer.chat_template
    chat = tokenizer.apply_chat_template(chat)["input_ids"] if template else None
    files = ("config.json", "generation_config.json")
    ends = [read_json(folder / file)["eos_token_id"] for file in files]
    return rows, decoded, roles, added, template, chat, ends


def text_ids(auto, text):
    return auto(text, add_special_tokens=False, split_special_tokens=True)["input_ids"]


@pytest.mark.parametrize("kind", TYPES)
def test_special_tokens_survive_import_and_export(kind, tmp_path):
    folder = hf_folder(kind, tmp_path / "hf")
    import_run(folder, tmp_path / "run")
    export_run(tmp_path / "run", "latest", tmp_path / "back", None)
    assert behavior(tmp_path / "back") == behavior(folder)
    tokenizer = load_run(tmp_path / "run").tokenizer
    assert load_hf(tmp_path / "back")[1].state() == tokenizer.state()
    auto = hf.AutoTokenizer.from_pretrained(folder)
    for text in TEXTS:
        assert tokenizer.encode(text).tolist() == text_ids(auto, text)
        expected = auto(text, add_special_tokens=False)["input_ids"]
        ids = encode_prompt(text, tokenizer, 999, False, tokenizer.template, special=True)
        assert ids == expected, "special tokens in a text are text, unless they are asked for"


@pytest.mark.parametrize("kind", ["llama3", "wordpiece"])
def test_special_tokens_survive_finetuning(kind, tmp_path, monkeypatch):
    """The template does not: training, samples and the export's AutoTokenizer agree on none."""
    monkeypatch.chdir(tmp_path)
    Path("book.txt").write_text(TEXT * 3)
    folder = hf_folder(kind, tmp_path / "hf", {"add_bos_token": True} if kind == "llama3" else {})
    overrides = "init_from=hf data=text data.path=book.txt train.batch_size=4 train.steps=1"
    assert train(*overrides.split(), "precision=fp32", "eval.max_examples=2", "name=tuned") == 0
    export_run("runs/tuned", "latest", tmp_path / "back", None)
    card = Path("back/README.md").read_text("utf-8")
    assert "train.py init_from='hf'" in card and "step 1: val_loss " in card
    back, before = behavior(tmp_path / "back"), behavior(folder, template=False)
    changed = [i for i in range(len(back)) if back[i] != before[i]]
    assert changed == {"llama3": [], "wordpiece": [2]}[kind], (
        "the roles that BertTokenizer presumes"
    )
    for tokenizer in (load_run("runs/tuned").tokenizer, load_hf("back")[1]):
        assert tokenizer.template == NO_TEMPLATE


@pytest.mark.parametrize("rstrip", [False, True])
@pytest.mark.parametrize("kind", ["roberta", "wordpiece"])
def test_masks_in_a_prompt_are_those_of_the_tokenizer(kind, rstrip, tmp_path):
    folder = hf_folder(kind, tmp_path / "hf")
    path = folder / "tokenizer.json"
    whole = read_json(path)
    mask = whole["added_tokens"][-1]
    mask["rstrip"] = rstrip
    path.write_text(json.dumps(whole))
    auto, tokenizer = Tokenizer.from_file(str(path)), load_hf(folder)[1]
    for text in MASKED:
        text = text.replace("<mask>", "[MASK]")
        own = text.replace("[MASK]", mask["content"])
        for prompt in (text, own):
            ids = encode_prompt(prompt, tokenizer, 64, False, tokenizer.template)
            assert ids == auto.encode(own).ids


SENTINELS = [f"<extra_id_{n}>" for n in range(3)]


@pytest.mark.parametrize("strip", [False, True])
@pytest.mark.parametrize("scheme", ["always", "first", "never"])
def test_sentinels_in_a_prompt_are_those_of_the_tokenizer(scheme, strip):
    """With the white space that they absorb, and the space that Metaspace puts behind them."""
    words = ["</s>", "<unk>", "\u2581", "\u2581a", "a", "b", "\u2581b", "x"]
    backend = unigrams(words, 1, scheme)
    backend.add_special_tokens([AddedToken(name, lstrip=strip, rstrip=strip) for name in SENTINELS])
    ids = {f"sentinel_{n}": backend.token_to_id(SENTINELS[n]) for n in (2, 1, 0)}
    tokenizer = HubTokenizer(backend.to_str(), {"end": 0} | ids, 20)
    for text in ("a {} b", "a{}b {}a", "{}", "{} a", "a  {}  b{}", "{}{} x", "a b", "x{} {} {}x"):
        expected = backend.encode(text.format(*SENTINELS)).ids
        prompt = text.replace("{}", "[MASK]")
        assert encode_prompt(prompt, tokenizer, 64, False, NO_TEMPLATE) == expected
    ordinary = encode_prompt("a <extra_id_0> b", tokenizer, 64, False, NO_TEMPLATE)
    assert not set(ids.values()) & set(ordinary)


def test_special_tokens_around_the_pieces_of_a_prompt():
    tokenizer = ByteTokenizer({"before": 256, "behind": 257, "middle": 258})
    options = (tokenizer, 64, False, [[9], []], tokenizer.specials)
    assert encode_prompt("a[MASK]b", *options) == [9, 256, ord("a"), 257, ord("b"), 258]
    assert encode_prompt("ab", *options) == [9, ord("a"), ord("b")]
    assert encode_prompt("<|middle|>|<|odd|>", *options, special=True) == [258, *b"|<|odd|>"]
    with refused("the prompt has 2 .MASK.; this run has 1"):
        encode_prompt("a[MASK]b[MASK]", *options)


def padded():
    """Of Llama 2, whose spaces a normalizer replaces. As many rows as tokens, but for that of padding,
    which is in tokenizer_config.json alone."""
    vocabulary = {token: i for i, token in enumerate(["<unk>", "<s>", "</s>", "\u2581", "a", "b"])}
    vocabulary["\u2581a"] = 6
    tokenizer = Tokenizer(models.BPE(vocabulary, [("\u2581", "a")], unk_token="<unk>"))
    spaces = [normalizers.Prepend("\u2581"), normalizers.Replace(" ", "\u2581")]
    tokenizer.normalizer = normalizers.Sequence(spaces)
    tokenizer.add_special_tokens(["<unk>", "<s>", "</s>"])
    settings = {"tokenizer_class": "LlamaTokenizer", "eos_token": "</s>", "pad_token": "[PAD]"}
    return tokenizer, settings


def only_in_settings():
    names = ["<|endoftext|>", "<think>"]
    tokens = {290 + i: dict(content=name, special=i == 0) for i, name in enumerate(names)}
    tokens[292] = dict(content="<new>", special=True)
    return bpe(names[0]), {"added_tokens_decoder": tokens, "eos_token": names[0]}


# what classes of tokenizers treat differently
PROBES = [
    "",
    " ",
    "a",
    " A  b   c ",
    "\t d\n\n\ne\r\nf\n",
    "\u00a0g\u200bh\ufeffi\x00j\x7f",
    "I'LL don't we've 'S `t'",
    "1 12 123 12345,678.9",
    "a-b_c://d.e/?f=g&h#i [j] {k}\\",
    "e\u0301 \u00e9 \u00c9 \u0130 \u00df",
    "\ufb01 \u212b \uff21\uff42\u3000\u2026 \u00bd \u2460",
    "\u732b\u306f\uac00 \u0627\u0644 \u0915\u094d",
    "\U0001f642 \U0001f469\u200d\U0001f4bb",
    "<s>a</s> <unk> [MASK]b <mask>",
    "\u2581a\u2581 \u0120b\u010a <0x0A>",
    *("x" * n for n in (17, 51, 101, 201, 1001)),
]


@pytest.mark.parametrize("make", [padded, only_in_settings])
def test_ids_are_those_of_the_class_that_transformers_chooses(make, tmp_path):
    """It replaces parts of tokenizer.json, and adds tokens to it."""
    rows = {"vocab_size": 7, "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": None}
    model = build_hf(LLAMA, **(rows if make is padded else {}))
    folder = save(model, tmp_path / "hf", *make())
    _, imported, exported = there_and_back(folder)
    auto, back = map(hf.AutoTokenizer.from_pretrained, (folder, exported))
    for text in [*TEXTS, *PROBES, "a<new> b"]:
        ids = imported.encode(text).tolist()
        assert ids == text_ids(auto, text) == text_ids(back, text)
        ids = encode_prompt(text, imported, 9999, False, imported.template, special=True)
        assert ids == auto(text, add_special_tokens=False)["input_ids"]


def test_a_token_without_a_row_is_refused_where_it_is_used(tmp_path):
    """A tokenizer may have more tokens than the model, as after an addition without a resize."""
    tokenizer = byte_pairs()
    tokenizer.add_special_tokens([f"<x{i}>" for i in range(40)])
    tokenizer.add_tokens(["zebra"])
    model, imported, back = there_and_back(save(build_hf(LLAMA), tmp_path / "hf", tokenizer))
    assert model.embedding.table.num_embeddings == imported.vocab_size == 300
    auto = hf.AutoTokenizer.from_pretrained(back)
    assert imported.encode("the cat").tolist() == auto("the cat")["input_ids"]
    sentence = "the text has the token {!r}, whose id is {}; the model's vocab_size is 300"
    with refused(sentence.format("zebra", 332), TokenizerError):
        imported.encode("a zebra")
    with refused(sentence.format("<x39>", 331), TokenizerError):
        imported.encode_specials("a <x39>")


WORDS = "the cat do n't . ? , ' s 've 's n' v re i 'm !"


@pytest.mark.parametrize("cleans_up", [False, True])
def test_spaces_are_cleaned_up_in_decoding(cleans_up, tmp_path):
    """If tokenizer_config.json asks for it, and never by BPE. A stream waits until it is sure."""
    words = [f"\u2581{word}" for word in WORDS.split()]
    backend = unigrams(words)
    settings = json.dumps({"clean_up_tokenization_spaces": cleans_up, **NO_CLASS})
    (tmp_path / "tokenizer_config.json").write_text(settings)
    backend.save(str(tmp_path / "tokenizer.json"))
    auto = hf.AutoTokenizer.from_pretrained(tmp_path)
    tokenizer = HubTokenizer(backend.to_str(), {"end": 0}, 20, {"tokenizer_config.json": settings})
    ids = random.Random(0).choices(range(len(words)), k=400)
    assert tokenizer.decode(ids) == auto.decode(ids)
    stream = tokenizer.incremental_decoder()
    shown = "".join(stream([i]) for i in ids)
    assert shown + stream([], final=True) == auto.decode(ids)
    assert (" ." in auto.decode(ids)) != cleans_up


@pytest.mark.parametrize("specials", [("end", "pad", "start"), ("end", "mask")])
def test_special_tokens_in_a_text_are_text_after_export(specials, tmp_path):
    """Unless a text has to name masks."""
    model, tokenizer = build("model=llama tokenizer=bpe", specials)
    export(model, tokenizer, tmp_path / "out")
    auto = hf.AutoTokenizer.from_pretrained(tmp_path / "out")
    text = "".join(f"<|{name}|>" for name in specials)
    ids = list(tokenizer.specials.values())
    assert auto.decode(ids, skip_special_tokens=True) == ""
    expected = ids if "mask" in specials else tokenizer.encode(text).tolist()
    assert auto(text)["input_ids"] == expected


def test_an_ordinary_token_is_no_mask(tmp_path):
    folder = hf_folder("wordpiece", tmp_path / "hf", PLAIN)  # BertTokenizer would make it one
    assert load_hf(folder)[1].specials["mask"] == 4
    path = folder / "tokenizer.json"
    whole = read_json(path)
    whole["added_tokens"].pop()
    path.write_text(json.dumps(whole))
    assert "mask" not in load_hf(folder)[1].specials
