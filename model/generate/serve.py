"""Serve: OpenAI's API for a run, and a page to try it. Each request is read and answered in a thread
of its own; one thread generates for all of them."""

import json
import time
from concurrent.futures import ThreadPoolExecutor
from decimal import Decimal
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from select import select
from socket import MSG_PEEK
from typing import Any

from configs.cli import print0
from data.chat import to_messages
from data.sources.tables import read_turns
from model.generate.decode import left_pad
from model.generate.options import SAMPLING, parse_options
from model.generate.score import score, texts_of

# {path: the kind of its answer, its field for what sample.py calls a prompt, and flags}
REQUESTS = {
    "/v1/completions": ("text_completion", "prompt"),
    "/v1/chat/completions": ("chat.completion", "messages", "--chat", "--json"),
    "/v1/embeddings": ("list", "input", "--embed=auto"),
}
GATHER = 0.005  # seconds in which requests can join a batch
# {setting of a request: option of sample.py}
FLAGS = {name: name.replace("_", "-") for name in f"{SAMPLING} stop".split()}
FLAGS |= {"max_tokens": "max-new-tokens", "max_completion_tokens": "max-new-tokens"}
IGNORED = ("model", "user", "stream_options", "encoding_format")
WAITING: list = []  # requests
WORKER = ThreadPoolExecutor(1)


class Client(BaseHTTPRequestHandler):
    """A client, which has one request."""

    sampler: Any  # of the server
    timeout = 5  # seconds in which a client must read or write

    def do_GET(self) -> None:
        if self.path == "/":
            page = Path(__file__).with_suffix(".html")
            self.send(page.read_text(encoding="utf-8"), "text/html")
        else:
            self.send('{"object": "list", "data": [{"id": "run", "object": "model"}]}')

    def do_POST(self) -> None:
        status = 200
        streams = False

        try:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            request = Request(self, json.loads(body, parse_float=Decimal))
            streams = request.streams
            if streams:
                self.send("", "text/event-stream")
            WAITING.append(request)
            WORKER.submit(request.generate).result()
            if not request.is_done:
                raise RuntimeError("another request of its batch failed; ask again")
            answer = request.answer(request.rows)
        except Exception as error:  # whatever was asked, the server goes on
            status = 400
            answer = json.dumps({"error": {"message": f"{self.path}: {error}"}})

        if streams:
            self.send_event(answer)
            self.send_event("[DONE]")
        else:
            self.send(answer, status=status)

    def send(self, content: str, kind: str = "application/json", status: int = 200) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.end_headers()
        self.wfile.write(content.encode())

    def send_event(self, content: str) -> None:
        self.wfile.write(f"data: {content}\n\n".encode())

    def check_connection(self) -> None:
        """Raise an error if the client is gone."""
        if select([self.connection], [], [], 0)[0] and not self.connection.recv(1, MSG_PEEK):
            raise ConnectionError


class Request:
    """What a client asks, as a command line of sample.py, and how it is answered."""

    is_done = False

    def __init__(self, client: Client, settings: dict):
        self.client = client
        self.kind, field, *flags = REQUESTS[client.path]
        prompts = settings.pop(field, None)
        if not isinstance(prompts, str | list) or prompts == []:
            raise ValueError(f"{field} is {prompts!r:.60}; expected a text or a list")

        # not all kinds of requests have these settings
        self.streams = field != "input" and settings.pop("stream", None) is True
        self.echoes = field == "prompt" and settings.pop("echo", False)
        self.n_likely = field == "prompt" and settings.pop("logprobs", 0)  # at each place

        for name, value in settings.items():
            if name in FLAGS and value is not None:
                values = value if isinstance(value, list) else [value]
                flags += [f"--{FLAGS[name]}={each}" for each in values]
            elif value and name not in IGNORED:
                raise ValueError(f"unknown setting {name}; choose from {', '.join(FLAGS)}, stream")

        options = parse_options(flags)
        if options.n > 128:
            raise ValueError("n is at most 128")
        # what the sampler checks: that this model can embed, or generate. It would also refuse
        # settings without effect, such as a seed, which clients send for greedy decoding, too
        options.given = {"embed" if options.embed else "max_new_tokens"}
        self.sampler = sampler = type(client.sampler)(options, client.sampler.run)

        # requests with the same can be in one batch
        self.batch_key = (sampler.sampling, options.max_new_tokens, sampler.rules)

        if self.n_likely and (self.streams or not sampler.echoes):
            raise ValueError("logprobs needs a decoder that continues a text, without a stream")
        if options.chat:
            self.kind += ".chunk" * self.streams
            prompts = [to_messages(read_turns("the request", prompts))]
        elif isinstance(prompts, str) or isinstance(prompts[0], int):
            prompts = [prompts]

        self.rows = [sampler.encode(prompt, n) for prompt in prompts for n in range(options.n)]
        left_pad([row.prompt_ids for row in self.rows], sampler.model)  # checks their lengths

    def generate(self) -> None:
        """Generate for this request, and for those that can be in one batch with it. After an error
        none of them is done, nor tried again: their rows have begun."""
        if self not in WAITING:
            return  # another one has done so

        n = 0
        while n < len(WAITING):  # more have come
            n = len(WAITING)
            time.sleep(GATHER)

        batch = [request for request in WAITING if request.batch_key == self.batch_key]
        for request in batch:
            WAITING.remove(request)

        owners = {id(row): request for request in batch for row in request.rows}
        rows = [row for request in batch for row in request.rows]
        for row, _ in self.sampler.complete(rows):
            request = owners[id(row)]
            try:
                request.client.check_connection()
                if request.streams and not row.stream.finish_reason:
                    request.client.send_event(request.answer([row]))
            except OSError:
                for own in request.rows:
                    own.stream.finish_reason = "stop"

        for request in batch:
            request.is_done = True

    def answer(self, rows: list) -> str:
        """The vectors, or the texts; of a stream, what is new in them."""
        answer: dict = {"object": self.kind}
        if self.kind == "list":
            data = [json.loads(row.stream.text) | {"index": n} for n, row in enumerate(rows)]
            answer["data"] = data
        else:
            answer["created"] = int(time.time())
            answer["choices"] = [self.choice(row) for row in rows]
        return json.dumps(answer)

    def choice(self, row: Any) -> dict:
        text = row.stream.text
        if self.echoes:
            text = self.sampler.tokenizer.decode(row.prompt_ids) + text

        new = text.removeprefix(row.shown)
        row.shown = text

        reason = row.stream.finish_reason
        reason = "stop" if reason == "eos" else reason
        choice = {"index": self.rows.index(row), "finish_reason": reason}
        if self.kind == "chat.completion.chunk":
            return choice | {"delta": {"content": new}}
        if self.kind == "chat.completion":
            return choice | {"message": {"content": new, "role": "assistant"}}

        logprobs = {"token_logprobs": row.stream.logprobs}
        row.stream.logprobs = []  # the next event of a stream has those after them
        if self.n_likely:
            logprobs = self.likeliest(row)
        return choice | {"text": new, "logprobs": logprobs}

    def likeliest(self, row: Any) -> dict:
        """The log-probabilities of the tokens and of the likeliest in their places: only when a text
        is read again are those of other tokens known."""
        ids = row.prompt_ids + row.stream.ids
        tokenizer = self.sampler.tokenizer

        # by the thread that generates
        logprobs, top = WORKER.submit(score, self.sampler.model, ids, self.n_likely).result()

        likely: list = [None]
        for before, logprob_of in zip(ids, top, strict=False):
            known = len(tokenizer.decode([before]))
            pairs = reversed(logprob_of.items())  # if several have one text, the likeliest counts
            likely.append({tokenizer.decode([before, i])[known:]: p for i, p in pairs})

        start = 0 if self.echoes else len(row.prompt_ids)
        return {
            "tokens": texts_of(tokenizer, ids)[start:],
            "token_logprobs": [None, *logprobs][start:],
            "top_logprobs": likely[start:],
        }


class Server(ThreadingHTTPServer):
    daemon_threads = False  # at the end, all requests are answered
    request_queue_size = 128

    def handle_error(self, *client: Any) -> None:
        """A client is gone: do_POST handles all other errors."""


def serve(sampler: Any) -> None:
    Client.sampler = sampler

    with Server((sampler.options.host, sampler.options.serve), Client) as server:
        print0(f"http://{sampler.options.host}:{server.server_port}")
        server.serve_forever()
