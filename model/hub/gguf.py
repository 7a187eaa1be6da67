"""GGUF: the file of llama.cpp and Ollama, made from an export to transformers. What it has no place
for must be as llama.cpp assumes."""

import re
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from torch import Tensor

from configs.cli import warn
from configs.errors import HubError
from data.disk import sync_and_hash
from data.tokenizers.tokenizer import Tokenizer
from data.tokenizers.train import PATTERN, byte_level
from model.hub.convert import export
from model.hub.families.positions import SIZE
from model.hub.family import KV_HEADS, SIZES, Match, read_config, refuse_changes, with_kv_heads
from model.hub.files import naming
from model.hub.spec import Spec
from model.hub.tokenizer import auto_tokenizer
from model.weights import model_tensors

GGUF = ".gguf"
KEYS = {  # {key of the file: the option whose value metadata() writes}
    "context_length": "context_length",
    "embedding_length": "d_model",
    "block_count": "n_layers",
    "feed_forward_length": "ffn.d_ff",
    "attention.head_count": "n_heads",
    "attention.head_count_kv": KV_HEADS,
    "attention.layer_norm_epsilon": "norm.eps",
    "attention.layer_norm_rms_epsilon": "norm.eps",
    "rope.freq_base": "position.rope_theta",
    "rope.freq_base_swa": "window.rope_theta",
    "attention.key_length": "attention.head_dim",
    "attention.value_length": "attention.v_head_dim",
    "attention.sliding_window": SIZE,
}
WIDTHS = ["attention.head_dim", "attention.v_head_dim"]
ALWAYS = ["context_length", "d_model", "n_layers", "n_heads", "attention.queries_per_kv"]
ALWAYS += ["ffn.d_ff", "norm.eps", "position.rope_theta"]
READ = {  # {class that llama.cpp has: the options that it reads from a file}
    "gpt2": ALWAYS,
    "llama": [*ALWAYS, *WIDTHS, "attention.bias", "attention.o_bias", "ffn.bias"],
    "qwen2": ALWAYS,
    "qwen3": ALWAYS + WIDTHS,
    "smollm3": ALWAYS,
    "olmo2": ALWAYS,
    "gemma3_text": [*ALWAYS, *WIDTHS, SIZE],
}
LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
SPLITS = {  # {name in llama.cpp: patterns that split a text}
    "gpt-2": [PATTERN],
    "smollm": [r"\p{N}", PATTERN],
    "llama-bpe": [LLAMA3],
    "qwen2": [LLAMA3.replace("{1,3}", "")],
}
# a text that each of them splits in another way
PROBE = (
    "I'LL can't\tx12345 \u0663\u0664 e\u0301 \u0939\u093f \u6771\u30ab aBc+=/d\n\n \t(z)!\r\n _\n  "
)


def export_gguf(
    model: Any, tokenizer: Tokenizer, file: Path, family: str | None, dtype: str
) -> str:
    """Write the file, by way of an export that is verified. Return how to run it."""
    if model.classes:
        raise HubError("a GGUF file has no place for classes; export a folder")

    with naming("GGUF files need the gguf package; pip install -e '.[gguf]' installs it"):
        import gguf

    with TemporaryDirectory(prefix=f"{file.name}.", dir=file.parent) as home:
        folder = Path(home, "hf")
        draft = Path(home, file.name)
        found, hf_model = export(model, tokenizer, folder, family)
        refuse_unread(found)
        arch = found.family.model_type.removesuffix("_text")
        writer = gguf.GGUFWriter(draft, arch)
        writer.add_name(file.stem)
        for key, value in metadata(found.spec).items():
            add = writer.add_float32 if isinstance(value, float) else writer.add_uint32
            add(f"{arch}.{key}", value)
        add_tokenizer(writer, tokenizer, folder)

        known = gguf.MODEL_ARCH[arch.upper()]
        names: Any = gguf.get_tensor_name_map(known, found.spec["n_layers"])
        # olmo2 of llama.cpp has no tied head
        tensors = hf_model.state_dict() if arch == "olmo2" else model_tensors(hf_model)
        for hf_name, weight in tensors.items():
            weight = arranged(weight, hf_name, arch, found.spec)
            kind = gguf.GGMLQuantizationType[dtype.upper() if weight.ndim > 1 else "F32"]
            with naming(f"--dtype {dtype}"):
                data = gguf.quants.quantize(weight.contiguous().numpy(), kind)
            writer.add_tensor(names.get_name(hf_name, (".weight", ".bias")), data, raw_dtype=kind)

        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        sync_and_hash(draft)
        draft.rename(file)
    return f"{file}: for llama-completion -m {file}"


def refuse_unread(found: Match) -> None:
    """Refuse a class that llama.cpp does not have, and a model that it would see in another way: it
    reads some options from the file, and assumes the defaults of the class for the others."""
    family, spec, config = found
    if family.model_type not in READ:
        raise HubError(
            f"{family.model_type} cannot be written as GGUF; try --family llama, or train model=llama "
            "(or gpt2, qwen2, smollm3, gemma3 or olmo2)"
        )

    usual = type(config)(**{key: getattr(config, key) for key in SIZES})
    with naming("llama.cpp"):
        assumed = read_config(family, usual)
        read = {option: spec[option] for option in READ[family.model_type] if option in spec}
        refuse_changes(spec, assumed | read)


def metadata(spec: Spec) -> Spec:
    """{key of the file: value}. If layers differ, the spec has the options of the first one, and its
    changes those of the others. In Gemma 3 the first has a window and a rope of its own (in another
    order, refuse_unread() refuses it); the others see all positions."""
    options = with_kv_heads(spec)
    for changes in spec.get("layers") or ():
        options |= changes
    options |= {SIZE: spec.get(SIZE), "window.rope_theta": spec.get("position.rope_theta")}
    return {key: options[name] for key, name in KEYS.items() if options.get(name) is not None}


def arranged(weight: Tensor, hf_name: str, arch: str, spec: Spec) -> Tensor:
    """A tensor as it is in the file."""
    if arch == "gpt2" and ".h." in hf_name:
        return weight.t()
    if arch == "gemma3" and hf_name.endswith("norm.weight"):
        return weight + 1
    if arch in ("llama", "smollm3") and re.search("[qk]_proj", hf_name):
        # rope pairs channels 2i and 2i + 1
        halves = weight.unflatten(0, (-1, 2, spec["attention.head_dim"] // 2))
        return halves.transpose(1, 2).flatten(0, 2)
    return weight


def add_tokenizer(writer: Any, tokenizer: Tokenizer, folder: Path) -> None:
    """Write how llama.cpp splits a text, the tokens and their types, and what surrounds a text."""
    import gguf

    special = gguf.SpecialVocab(folder, load_merges=True)
    library = auto_tokenizer(folder).backend_tokenizer
    split = name_of_split(library, special.merges)
    warn_of_ids(library, split)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(split)

    kinds = gguf.TokenType
    tokens = []
    types = []
    added = library.get_added_tokens_decoder()
    for i in range(tokenizer.vocab_size):
        token = library.id_to_token(i)
        kind = kinds.NORMAL if token else kinds.UNUSED
        if i in added:
            kind = kinds.CONTROL if added[i].special else kinds.USER_DEFINED
        tokens.append(token or f"[PAD{i}]")
        types.append(kind)

    writer.add_token_list(tokens)
    writer.add_token_types(types)

    before, after = tokenizer.template
    if before not in ([], [tokenizer.start]) or after not in ([], tokenizer.end_ids[:1]):
        raise HubError("llama.cpp has no such template: it adds one start and one end token")
    if len(tokenizer.end_ids) > 3:
        warn("llama.cpp has three end tokens, so it does not stop at the others")

    roles = zip(("bos", "eos", "eot", "eom"), [tokenizer.start, *tokenizer.end_ids], strict=False)
    special.special_token_ids |= dict(roles)
    special.add_special_token |= {"bos": bool(before), "eos": bool(after)}
    special.merges = special.merges or ["<|end|> <|end|>"]  # none is an error
    special.add_to_gguf(writer, quiet=True)


def name_of_split(library: Any, merges: Any) -> str:
    """The name in llama.cpp of how a tokenizer splits a text. Without merges nothing is split."""
    split = library.pre_tokenizer
    for name, patterns in SPLITS.items():
        usual = byte_level(*patterns if merges else ())
        if split and split.pre_tokenize_str(PROBE) == usual.pre_tokenize_str(PROBE):
            return name
    raise HubError("llama.cpp has no such tokenizer; train with tokenizer=bpe (or byte, gpt2)")


def warn_of_ids(library: Any, split: str) -> None:
    """Tell what llama.cpp does in another way, which changes the ids of some texts."""
    added = library.get_added_tokens_decoder().values()
    differences = {
        "does not normalize text": library.normalizer is not None,
        "keeps spaces around added tokens": any(token.lstrip or token.rstrip for token in added),
        "finds added tokens within words": any(token.single_word for token in added),
        "applies merges in another way": library.model.ignore_merges != (split == "llama-bpe")
        and has_unmerged_words(library),
    }

    for what, differs in differences.items():
        if differs:
            warn(f"llama.cpp {what}, unlike this tokenizer: the ids of some texts differ")


def has_unmerged_words(library: Any) -> bool:
    """Whether merges alone do not make some word of the vocabulary."""
    model = library.model
    model.ignore_merges = False  # nothing reads it after this
    added = {token.content for token in library.get_added_tokens_decoder().values()}
    return any(len(model.tokenize(word)) > 1 for word in library.get_vocab(False).keys() - added)
