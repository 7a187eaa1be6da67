"""What a model says while it is trained: the continuation of a validation text."""

from model.generate.decode import generate
from training.predictions import predict_masks, predict_targets
from training.run import Run

PROMPT_TOKENS, NEW_TOKENS = 16, 48


def sample(run: Run) -> dict[str, str]:
    """A prediction for one fixed validation example, {name: text}."""
    batch = next(run.data.validation.evaluation(1))
    with run.evaluating():
        [tokens] = batch.inputs["tokens"].tolist()
        if classes := run.model.classes:
            prediction, label = predict_masks(run, batch)
            return {"label": classes[label], "prediction": classes[prediction]}
        if run.model.kind == "encoder":
            predicted, targets = predict_masks(run, batch)
            row = {"masked": tokens, "target": targets.tolist(), "prediction": predicted.tolist()}
        elif "source" in batch.inputs or run.data.objective.input_kind != "text":
            [row, *_] = predict_targets(run, batch)
        else:
            prompt = tokens[:PROMPT_TOKENS]
            options = {"max_new_tokens": NEW_TOKENS, "stop": run.data.tokenizer.end_ids}
            new = [i for [i] in generate(run.model, [prompt], **options)]
            row = {"prompt": prompt, "continuation": new}
    to_text = run.data.tokenizer.decode_with_specials
    return {name: to_text(ids) for name, ids in row.items()}
