"""sample.py --serve, asked by the openai package: the texts are those of sample.py."""

import json
from functools import partial
from threading import Thread

import pytest
from openai import APITimeoutError, BadRequestError, OpenAI

from model.generate import serve
from model.generate.options import parse_options
from sample import Sampler
from tests.test_sample import home, rows, run  # noqa: F401

OPTIONS = {"seed": 3, "temperature": 1.5, "n": 2, "stop": ["j", "k"], "max_tokens": 20}
FLAGS = ["--seed=3", "--temperature=1.5", "--n=2", "--stop=j", "--stop=k", "--max-new-tokens=20"]


@pytest.fixture
def client(run):
    serve.Client.sampler = Sampler(parse_options(["--run=runs/gpt2", "--precision=fp32"]))
    with serve.Server(("localhost", 0), serve.Client) as server:
        Thread(target=server.serve_forever).start()
        yield OpenAI(
            base_url=f"http://localhost:{server.server_port}/v1", api_key="-", max_retries=0
        )
        server.shutdown()


@pytest.fixture
def create(client):
    return partial(client.completions.create, model="-")


def test_completions(create, rows):
    prompt = "line ☃"
    expected = rows("--prompt", prompt, *FLAGS)
    texts = ["", ""]
    logprobs = [[], []]
    for event in create(prompt=prompt, stream=True, **OPTIONS):
        for choice in event.choices:
            texts[choice.index] += choice.text
            logprobs[choice.index] += choice.logprobs.token_logprobs
    assert texts == [row["text"] for row in expected]
    assert logprobs == [row["logprobs"] for row in expected]
    found = create(prompt=2 * [list(prompt.encode())], echo=True, logprobs=3, **OPTIONS).choices
    for choice, row in zip(found, 2 * expected, strict=True):
        assert found[choice.index] is choice
        assert choice.text == prompt + row["text"]
        assert "".join(choice.logprobs.tokens).startswith(choice.text)
        _, *read = choice.logprobs.token_logprobs
        assert read[-len(row["ids"]) :] == pytest.approx(row["logprobs"], abs=1e-5)
        for logprob, likely in zip(read, choice.logprobs.top_logprobs[1:], strict=True):
            assert max(likely.values()) >= logprob


def test_embeddings(client, run):
    serve.Client.sampler = Sampler(parse_options(["--run=runs/bert", "--precision=fp32"]))
    _, found = client.embeddings.create(input=["a", "line 1"], model="-").data
    expected = json.loads(run("--embed=auto", stdin=b"line 1", name="bert"))["embedding"]
    assert found.embedding == pytest.approx(expected, abs=1e-6)


def test_conversations(client, create):
    serve.Client.sampler.run.config["objective"]["kind"] = "chat"
    options = {"max_tokens": 9, "temperature": 0, "seed": 3, "model": "-"}
    chat = partial(
        client.chat.completions.create, messages=[{"role": "user", "content": "a"}], **options
    )
    answer = chat().choices[0].message.content
    assert answer != create(prompt="a", **options).choices[0].text
    assert "".join(event.choices[0].delta.content for event in chat(stream=True)) == answer


def test_requests_that_wait_are_one_batch(create, monkeypatch):
    monkeypatch.setattr(serve.Client, "check_connection", lambda self: None)
    for seed, prompt in ((0, "a"), (0, "line 1"), (1, [97])):
        client = object.__new__(serve.Client)
        client.path = "/v1/completions"
        serve.WAITING += [serve.Request(client, {"prompt": prompt, "seed": seed, "max_tokens": 9})]
    first, second, other = serve.WAITING
    first.generate()
    second.generate()
    assert [other] == serve.WAITING
    other.generate()
    [choice] = create(prompt="line 1", max_tokens=9).choices
    assert choice.text == second.rows[0].stream.text


WRONG = {
    "unknown setting best_of; choose from top_k, ": {"best_of": 3},
    "the prompt has 50 tokens; the context length is 32": {"prompt": "x" * 50, "stream": True},
    "prompt is None; expected a text or a list": {"prompt": None},
}


def test_bad_requests(client, create):
    for sentence, options in WRONG.items():
        with pytest.raises(BadRequestError, match=sentence):
            create(prompt="a", extra_body=options)
    assert client.models.list().data


def test_a_client_that_leaves_costs_nothing(create):
    endless = partial(create, prompt="a", max_tokens=10**6, temperature=0)
    with endless(stream=True) as stream:
        next(iter(stream))
    with pytest.raises(APITimeoutError):
        endless(timeout=0.5)
    create(prompt="a", max_tokens=1, timeout=20)
