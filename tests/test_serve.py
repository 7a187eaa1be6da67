"""sample.py --serve, asked by the openai package: the texts are those of sample.py."""

from functools import partial
from threading import Thread

import pytest
from openai import BadRequestError, OpenAI

from model.generate import serve
from model.generate.options import parse_options
from sample import Sampler
from tests.test_sample import home, rows, run  # noqa: F401

MESSAGES = [{"role": "user", "content": "a"}]
OPTIONS = {"seed": 3, "temperature": 1.5, "n": 2, "stop": ["e", "a"], "max_tokens": 20}
FLAGS = ["--seed=3", "--temperature=1.5", "--n=2", "--stop=e", "--stop=a", "--max-new-tokens=20"]


@pytest.fixture
def client(run):
    serve.Client.sampler = Sampler(parse_options(["--run=runs/gpt2", "--precision=fp32"]))
    with serve.Server(("localhost", 0), serve.Client) as server:
        Thread(target=server.serve_forever).start()
        yield OpenAI(base_url=f"http://localhost:{server.server_port}/v1", api_key="-")
        server.shutdown()


@pytest.fixture
def create(client):
    return partial(client.completions.create, model="-")


def test_completions(create, rows):
    expected = [row["text"] for row in rows("--prompt=line 1", "--prompt=☃", *FLAGS)]
    assert [choice.text for choice in create(prompt=["line 1", "☃"], **OPTIONS).choices] == expected

    streamed = ["", ""]
    for event in create(prompt="☃", stream=True, **OPTIONS):
        [choice] = event.choices
        streamed[choice.index] += choice.text
    assert streamed == expected[2:]


def test_conversations(client, create):
    serve.Client.sampler.run.config["objective"]["kind"] = "chat"
    options = {"max_tokens": 9, "temperature": 0}
    chat = partial(client.chat.completions.create, model="-", messages=MESSAGES, **options)
    answer = chat().choices[0].message.content
    assert answer != create(prompt="a", **options).choices[0].text, "a template"
    assert "".join(event.choices[0].delta.content for event in chat(stream=True)) == answer


def test_requests_that_wait_are_one_batch(create):
    for seed, prompt in ((0, "a"), (0, "line 1"), (1, "a")):
        request = object.__new__(serve.Client)
        request.read_request({"prompt": prompt, "seed": seed, "max_tokens": 9})
        serve.WAITING.append(request)
    first, second, other = serve.WAITING
    first.generate()
    assert [other] == serve.WAITING
    other.generate()
    [choice] = create(prompt="line 1", max_tokens=9).choices
    assert choice.text == second.rows[0].stream.text


WRONG = {
    "unknown option --best-of=3": {"best_of": 3},
    "the prompt has 50 tokens; the context length is 32": {"prompt": "x" * 50},
    "needs a run of data=chat": {"messages": MESSAGES},
}


def test_bad_requests(client, create):
    for sentence, options in WRONG.items():
        with pytest.raises(BadRequestError, match=sentence):
            create(prompt="a", extra_body=options)
    assert client.models.list().data


def test_a_client_that_leaves_costs_nothing(create):
    with create(prompt="a", max_tokens=10**6, stream=True) as stream:
        next(iter(stream))
    assert create(prompt="a", max_tokens=1).choices
