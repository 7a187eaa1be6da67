"""Ending: what a run has come to, what others need for the same text, and what to type next."""

from data.store import entropy
from training.compressors import compressors

PROMPTS = {
    "decoder": '--prompt "def "',
    "encoder": '--prompt "def [MASK](self):"',
    "encoder_decoder": '--source "..."',
}


def ending(run, found):
    """found: the last evaluation."""
    lines = []
    if "val_bpb" in found:
        lines.append(f"{'this model':<40} {found['val_bpb']:.3f} bits per byte of the validation text")
        lines += [f"{name:<40} {bits:.3f}" for name, bits in compressors(run.streams).items()]
    simple = entropy(run.streams.train.part.tokens)
    if run.progress.step and found["val_loss"] >= simple:
        lines.append(
            f"warning: to know how often each token occurs is enough for a loss of {simple:.2f}; train "
            "longer, or at another optimizer.rate"
        )
    if run.progress.step < run.steps:
        lines.append(
            f"ended at step {run.progress.step:,} of {run.steps:,}: {run.progress.since_best} evaluations "
            "in a row brought nothing better"
        )
    if run.saver.count:
        lines.append(run.saver.cost())
    lines += ["", f"kept in {run.folder}, with curve.png; next:"]
    if run.progress.step:
        lines.append(f"    python sample.py --run {run.folder} {PROMPTS[run.config.model.kind]}")
    lines.append(f"    python -m training.compare {run.folder} runs/...")
    return "\n".join(lines)
