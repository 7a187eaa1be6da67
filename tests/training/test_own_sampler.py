"""A sampler of one's own, of an objective or an architecture, is called by sample.py, and for the
samples of a run."""

import json

import pytest
import torch

import sample
from configs.cli import run_command
from data.objectives import OBJECTIVES, NextToken
from data.objectives.masked import Masked
from model.generate.decode import DecodeStep, decode, left_pad
from model.transformer import ARCHITECTURES, Decoder
from tests.training.runs import read_lines


class Diffusion(Masked):
    """Masked diffusion: each step keeps the most certain prediction (arxiv.org/abs/2502.09992)."""

    @torch.inference_mode()
    def generate(self, model, prompts, *, tokenizer, max_new_tokens, sampling, stop, row_ids):
        mask = tokenizer.specials["mask"]
        n = min(max_new_tokens, model.context_length - max(map(len, prompts)))
        tokens, visible = left_pad([[*prompt, *[mask] * n] for prompt in prompts], model)
        for _ in range(n):
            logits = model(tokens, visible=visible)[..., : tokenizer.n_ordinary]
            best = logits.log_softmax(-1).max(-1)
            certainty = best.values.masked_fill(tokens != mask, -torch.inf)
            place = certainty.argmax(-1, keepdim=True)
            tokens.scatter_(1, place, best.indices.gather(1, place))
        for column in tokens[:, -n:].T.tolist():
            yield DecodeStep(column, [0.0] * len(prompts))


class Backwards(Decoder):
    """Its samples are upside down."""

    def generate(self, prompts, *, tokenizer, **options):
        yield from reversed(list(decode(self, prompts, **options)))


def rows(capsys, *args):
    capsys.readouterr()
    assert run_command(lambda: sample.main(["--run", "runs/own", "--json", *args])) == 0
    return list(map(json.loads, capsys.readouterr().out.splitlines()))


def test_of_an_objective(start, monkeypatch, capsys):
    monkeypatch.setitem(OBJECTIVES, "own", Diffusion)
    options = (
        "model=modern_encoder objective=masked objective.kind=own tokenizer=byte sample.every=2"
    )
    start("name=own", "model.context_length=64", *options.split())
    sampled = read_lines("runs/own/samples.jsonl")[-1]
    assert len(sampled["prompt"]) == 16 and "<mask>" not in str(sampled)
    assert len(sampled["continuation"]) == 48
    args = ["--prompt", "def ", "--prompt", "class", "--max-new-tokens", "9"]
    first, second = rows(capsys, *args)
    assert [len(first["ids"]), len(second["ids"])] == [9, 9]
    assert first["ids"] == rows(capsys, *args[:2], *args[4:])[0]["ids"]
    with pytest.raises(ValueError, match="--beams needs an encoder_decoder"):
        sample.main(["--run", "runs/own", "--prompt", "a", "--beams", "2"])


def test_of_an_architecture(start, monkeypatch, capsys):
    monkeypatch.setitem(ARCHITECTURES, "own", Backwards)
    monkeypatch.setattr(NextToken, "architectures", (*NextToken.architectures, "own"))
    start(*["name=own", "model.kind=own", "tokenizer=byte", "sample.every=2"])
    sampled = read_lines("runs/own/samples.jsonl")[-1]["continuation"]
    args = ["--prompt", "def ", "--max-new-tokens", "9", "--temperature", "0"]
    [backwards] = rows(capsys, *args)
    monkeypatch.setattr(Backwards, "generate", None)
    [forwards] = rows(capsys, *args)
    assert backwards["ids"] == forwards["ids"][::-1]
    assert len(sampled) > 0
    with pytest.raises(ValueError, match="--chat needs a run of data=chat, or an import with"):
        sample.main(["--run", "runs/own", "--chat"])
