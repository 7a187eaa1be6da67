"""Greedy decoding beside transformers' generate and, if installed, llama.cpp (llama-cpp-python and
gguf) and CTranslate2, with the same weights and prompts.

They take turns, each in a fresh process, so that none inherits another's memory.

    OMP_NUM_THREADS=2 python -m tests.benchmarks.decoding [rounds]

A line has the size, precision and batch; in parentheses, how many texts are equal to ours; and
our speed in relation to it, the median of pairs.
"""

import sys
import time
from functools import partial
from importlib.util import find_spec
from itertools import product
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

import numpy as np
import torch

from model.generate.decode import generate
from model.hub.gguf import arranged
from model.inference import prepare
from model.precision import DTYPES
from model.weights import model_tensors
from tests.benchmarks._turns import in_process, ratios, spread, take_turns
from tests.benchmarks.step import both_models

SIZES = {  # layers, heads, width, context length, vocabulary
    "10m": (6, 6, 384, 256, 65),
    "124m": (12, 12, 768, 1024, 50257),
}
PROMPT = 16
NEW = 200  # tokens


def ours(model, theirs, dtype, batch):
    prepare(model.to(DTYPES[dtype]))

    def decode(prompts, new):
        return np.transpose(list(generate(model, prompts, max_new_tokens=new))).tolist()

    return decode


def transformers(model, theirs, dtype, batch):
    theirs.generation_config.eos_token_id = None  # every text has the full length
    theirs.to(DTYPES[dtype])

    def decode(prompts, new):
        text = torch.tensor(prompts)
        ids = theirs.generate(
            text,
            attention_mask=torch.ones_like(text),
            do_sample=False,
            pad_token_id=0,
            max_new_tokens=new,
        )
        return ids[:, PROMPT:].tolist()

    return decode


def write_gguf(model, file, dtype):
    """Write GPT-2 without a tokenizer: ids go in and out."""
    import gguf

    config = model.config
    writer = gguf.GGUFWriter(file, "gpt2")
    writer.add_context_length(config.n_positions)
    writer.add_embedding_length(config.n_embd)
    writer.add_block_count(config.n_layer)
    writer.add_feed_forward_length(4 * config.n_embd)
    writer.add_head_count(config.n_head)
    writer.add_layer_norm_eps(config.layer_norm_epsilon)
    writer.add_tokenizer_model("none")
    writer.add_vocab_size(config.vocab_size)
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.GPT2, config.n_layer)
    for name, weight in model_tensors(model).items():
        is_matrix = weight.ndim > 1 and "wpe" not in name
        kind = gguf.GGMLQuantizationType["BF16" if is_matrix and dtype == "bf16" else "F32"]
        data = arranged(weight, name, "gpt2", {}).contiguous().numpy()
        data = gguf.quants.quantize(data, kind)
        writer.add_tensor(names.get_name(name, (".weight", ".bias")), data, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def llama_cpp(model, theirs, dtype, batch):
    import llama_cpp as library

    library._logger.set_verbose(False)
    with TemporaryDirectory() as folder:
        file = Path(folder, "x.gguf")
        write_gguf(theirs, file, dtype)
        options = library.llama_model_default_params()
        options.use_mmap = False
        loaded = library.llama_model_load_from_file(str(file).encode(), options)
    options = library.llama_context_default_params()
    options.n_seq_max = batch
    options.n_ctx = batch * (PROMPT + NEW)
    options.n_threads = options.n_threads_batch = torch.get_num_threads()
    context = library.llama_init_from_model(loaded, options)
    shape = batch, theirs.config.vocab_size

    def step(rows, start):
        """The most likely next id of each row."""
        tokens = library.llama_batch_init(sum(map(len, rows)), 0, 1)
        for number, row in enumerate(rows):
            for i, token in enumerate(row):
                at = tokens.n_tokens
                tokens.token[at] = token
                tokens.pos[at] = start + i
                tokens.n_seq_id[at] = 1
                tokens.seq_id[at][0] = number
                tokens.logits[at] = i == len(row) - 1
                tokens.n_tokens += 1
        if library.llama_decode(context, tokens):
            raise RuntimeError("llama_decode failed")
        library.llama_batch_free(tokens)
        logits = np.ctypeslib.as_array(library.llama_get_logits(context), shape)
        return logits.argmax(-1).tolist()

    def decode(prompts, new):
        library.llama_memory_clear(library.llama_get_memory(context), True)
        steps = [step(prompts, 0)]
        for at in range(PROMPT, PROMPT + new - 1):
            steps.append(step([[token] for token in steps[-1]], at))
        return np.transpose(steps).tolist()

    return decode


def ctranslate2(model, theirs, dtype, batch):
    import ctranslate2 as library
    from ctranslate2.converters.transformers import GPT2Loader

    spec = GPT2Loader().get_model_spec(theirs)
    spec.register_vocabulary(list(map(str, range(theirs.config.vocab_size))))
    spec.config.bos_token = spec.config.eos_token = spec.config.unk_token = "0"
    spec.validate()
    spec.optimize()
    with TemporaryDirectory() as folder:
        spec.save(folder)
        kind = {"fp32": "float32", "bf16": "bfloat16"}[dtype]
        threads = torch.get_num_threads()
        generator = library.Generator(folder, compute_type=kind, intra_threads=threads)

    def decode(prompts, new):
        texts = [list(map(str, prompt)) for prompt in prompts]
        options = {"min_length": new, "max_length": new, "include_prompt_in_result": False}
        return [found.sequences_ids[0] for found in generator.generate_batch(texts, **options)]

    return decode


SIDES = {side.__name__: side for side in (ours, transformers, llama_cpp, ctranslate2)}


def measure(size, dtype, batch, side):
    """(ids, seconds) of one side."""
    models = (model.eval() for model in both_models(*SIZES[size]))
    function = SIDES[side](*models, dtype, batch)
    torch.manual_seed(1)
    prompts = torch.randint(SIZES[size][-1], (batch, PROMPT)).tolist()
    function(prompts, 4)  # the first call warms up
    start = time.perf_counter()
    ids = function(prompts, NEW)
    return ids, time.perf_counter() - start


def compare(*cell, rounds):
    """Print our speed, and a line for each of the others."""
    size, dtype, batch = cell
    _, *others = SIDES
    if dtype == "bf16":  # on most CPUs CTranslate2, the last, has none
        others.pop()
    sides = ["ours", *filter(find_spec, others)]
    found = take_turns(sides, rounds, partial(in_process, measure, *cell))
    own_ids, own_seconds = zip(*found["ours"], strict=True)
    for name, results in found.items():
        ids, seconds = zip(*results, strict=True)
        speed = f"{batch * NEW / median(seconds):.1f} tokens/s"
        n_equal = sum(map(list.__eq__, own_ids[0], ids[0]))
        ratio = spread(ratios(seconds, own_seconds))
        print(
            f"{size:>5} {dtype} {batch:>3}  {name:<12} {speed:>18} ({n_equal})  {ratio}", flush=True
        )


def main(rounds=3):
    for cell in product(SIZES, ("fp32", "bf16"), (1, 16)):
        compare(*cell, rounds=rounds)


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
