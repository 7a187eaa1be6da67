"""The page of --explain has the numbers of sample.py --json and of the attention maps."""

import base64
import json
import re
import shutil
import subprocess

import numpy as np
import pytest
import torch

from data.tokenizers.plain import ByteTokenizer
from model.checkpoint import load_run
from model.explain import write_page
from model.transformer import build_model
from tests.model.test_attention_maps import attention_maps
from tests.parts import tiny
from tests.test_sample import FAMILIES, home, limit, rows, run  # noqa: F401


def read(path):
    text = path.read_text()
    data = re.search(r'json" id="data">(.*?)</script>', text)[1]
    assert "<" not in data, "no token may end the script"
    page = json.loads(data)
    for name, code in page["weights"].items():
        page["weights"][name] = np.frombuffer(base64.b64decode(code), "<f2").astype("f4")
    return page


@pytest.mark.parametrize("name", FAMILIES)
def test_numbers(name, rows, tmp_path):
    """Those of gpt2 end with its context."""
    path = tmp_path / "page.html"
    [row] = rows("--prompt", "a [MASK]</", *limit(40, name), "--explain", f"{path}", name=name)
    page = read(path)
    inputs = {key: torch.tensor([page[key]]) for key in ("source", "tokens") if key in page}
    model = load_run(f"runs/{name}").model.float()
    logits = model(**inputs)[0]
    first, *_, last = page["top"]
    ids, logprobs = map(torch.tensor, last)
    assert first != last
    for temperature, totals in page["totals"].items():
        shares = (logprobs / float(temperature) - torch.tensor(totals)[:, None]).exp()
        expected = (logits / float(temperature)).softmax(-1).topk(10)
        torch.testing.assert_close(shares, expected.values, rtol=1e-3, atol=1e-5)

    answer = page["logprobs"]
    if name == "bert":
        place = page["tokens"].index(page["mask"])
        answer = [logprobs[place, ids[place].tolist().index(row["ids"][0])].item()]
    elif "source" not in page:
        answer = answer[page["n_prompt"] - 1 :]
    assert answer and answer == pytest.approx(row["logprobs"][: len(answer)], abs=1e-4)

    for key, weights_HTS in attention_maps(model, inputs).items():
        stored = torch.tensor(page["weights"][key]).view(weights_HTS.shape)
        torch.testing.assert_close(stored, weights_HTS, rtol=1e-3, atol=1e-4)
        torch.testing.assert_close(stored.sum(-1), weights_HTS.sum(-1), rtol=0, atol=2e-3)


@pytest.mark.skipif(not shutil.which("chromium"), reason="needs chromium")
def test_in_a_browser(tmp_path):
    """The script of a page runs without an error."""
    path = tmp_path / "page.html"
    net = build_model(tiny(), 257).eval()
    write_page(path, net, ByteTokenizer({"end": 256}), {"tokens": [*b"</b>"]}, [*b"\xe2\x98wx"])
    flags = "--headless --no-sandbox --virtual-time-budget=3000 --enable-logging=stderr --dump-dom"
    command = ["chromium", *flags.split(), f"--user-data-dir={tmp_path}", path.as_uri()]
    shown = subprocess.run(command, capture_output=True, text=True)
    assert "CONSOLE" not in shown.stderr
    assert "\\xe2</button>" in shown.stdout and "&lt;</button>" in shown.stdout
    assert shown.stdout.count('<td class="bar"><span') == 10
