"""What a model says while it is trained: the continuation of a validation text."""

import torch

from training.predictions import predict, predict_example
from training.run import Run

PROMPT_TOKENS = 16
NEW_TOKENS = 48


def sample(run: Run) -> dict[str, str]:
    """A prediction for one fixed validation example, {name: text}."""
    batch = next(run.data.validation.evaluation(1))
    with run.evaluating():
        if run.model.kind != "decoder" or run.data.objective.input_kind != "text":
            row = predict_example(run, batch)
        else:
            prompt = batch.inputs["tokens"][0, :PROMPT_TOKENS].tolist()
            row = {"prompt": prompt, "continuation": continuation(run, prompt)}
    to_text = run.data.tokenizer.decode_with_specials
    return {name: ids if isinstance(ids, str) else to_text(ids) for name, ids in row.items()}


def continuation(run: Run, prompt: list[int]) -> list[int]:
    """The likeliest next token, again and again. Each pass reads the newest tokens that fit, as in
    training. sample.py keeps keys and values instead (model/generate/decode.py): up to rounding,
    the result is the same until the context is full."""
    model = run.model
    if hasattr(model, "generate"):  # of a custom architecture
        return predict(run, [prompt], NEW_TOKENS)[0]
    ids = list(prompt)
    for _ in range(NEW_TOKENS):
        newest = torch.tensor([ids[-model.context_length :]], device=run.world.device)
        logits_V = model.head(model.hidden(newest)[0, -1])
        ids.append(int(logits_V.argmax()))
        if ids[-1] in run.data.tokenizer.end_ids:
            break
    return ids[len(prompt) :]
