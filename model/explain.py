"""Explain: an HTML page of what a model predicts and attends to, for a prompt and its answer."""

import json
from base64 import b64encode
from itertools import chain
from pathlib import Path
from typing import Any

import torch
from torch.nn.modules.module import register_module_forward_hook

from model import LEGEND
from model.attention_maps import recorded_weights, token_labels
from model.shapes import trace_forward

TEMPERATURES = [n / 20 for n in range(2, 41)]  # 0.1 to 2


@torch.inference_mode()
def explain(model: Any, tokenizer: Any, inputs: dict[str, list[int]], answer: list[int]) -> dict:
    """The data of the page. `inputs`: ids, by the name of the model's argument; `answer`: those that
    were generated, or that fill the masks."""
    n_prompt = len(inputs["tokens"])
    tokens = inputs["tokens"] + (answer if model.kind == "decoder" else [])
    tokens = tokens[: model.context_length]
    inputs = inputs | {"tokens": tokens}
    device = next(model.parameters()).device
    tensors = {name: torch.tensor([ids], device=device) for name, ids in inputs.items()}

    outputs = {}
    keep = register_module_forward_hook(lambda part, _, output: outputs.update({part: output}))

    with recorded_weights(model) as weights, keep:
        records = trace_forward(model, tensors)

    # each layer as if it were the last (logit lens); the last predicts what the model does
    stack = model.decoder if "source" in inputs else model.stack
    hidden = [stack.final_norm(outputs[block]) for block in stack.blocks]
    logprobs = [model.head(x)[0].float().log_softmax(-1) for x in hidden]
    top = [each.topk(min(10, each.shape[-1])) for each in logprobs]
    ids = chain(answer, *inputs.values(), *(each.indices.flatten().tolist() for each in top))

    return inputs | {
        "kind": model.kind,
        "n_prompt": n_prompt,
        "answer": answer,
        "mask": tokenizer.specials.get("mask"),
        "labels": token_labels(tokenizer, ids),
        "top": [[each.indices.tolist(), each.values.tolist()] for each in top],
        "logprobs": logprobs[-1][range(len(tokens) - 1), tokens[1:]].tolist(),
        # with these, the page computes exact probabilities at temperature t
        "totals": {t: (logprobs[-1] / t).logsumexp(-1).tolist() for t in TEMPERATURES},
        "weights": {
            name: b64encode(each.half().numpy().data).decode() for name, each in weights.items()
        },
        "shapes": [[each.module, each.name, each.axes, each.tensor.shape] for each in records],
        "legend": LEGEND,
    }


def write_page(path: Path, *inputs: Any) -> None:
    data = json.dumps(explain(*inputs)).replace("<", r"\u003c")  # no text ends the script
    page = Path(__file__).with_suffix(".html").read_text(encoding="utf-8")
    path.write_text(page.replace("DATA", data, 1), encoding="utf-8")
