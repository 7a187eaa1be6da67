"""Serve: OpenAI's API for a run, and a page to try it."""

import json
import time
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from configs.cli import print
from data.chat import to_messages
from data.sources.tables import read_turns
from model.generate.decode import left_pad
from model.generate.options import SAMPLING, parse_options

GATHER = 0.005  # seconds in which requests can join a batch
# {setting of a request: option of sample.py}
FLAGS = {name: name.replace("_", "-") for name in f"{SAMPLING} stop".split()}
FLAGS |= {"max_tokens": "max-new-tokens", "max_completion_tokens": "max-new-tokens"}
IGNORED = ("model", "user", "stream", "stream_options")
MODELS = '{"object": "list", "data": [{"id": "run", "object": "model"}]}'
WAITING: list = []  # clients
WORKER = ThreadPoolExecutor(1)


class Client(BaseHTTPRequestHandler):
    """A client with a request. Those that wait with the same settings are one batch."""

    sampler: Any  # of the server; then of the request
    streams = False
    timeout = 5  # seconds in which a client must read or write

    def do_GET(self) -> None:
        if self.path == "/":
            page = Path(__file__).with_suffix(".html")
            self.send(page.read_text(encoding="utf-8"), "text/html")
        else:
            self.send(MODELS)

    def do_POST(self) -> None:
        status = 200
        try:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            self.read_request(json.loads(body))
            if self.streams:
                self.send("", "text/event-stream")

            WAITING.append(self)
            WORKER.submit(self.generate).result()
            answer = self.response(self.rows)
        except Exception as error:  # whatever was asked, the server goes on
            status = 400
            answer = json.dumps({"error": {"message": str(error)}})

        if self.streams:
            self.send_event(answer)
            self.send_event("[DONE]")
        else:
            self.send(answer, status=status)

    def read_request(self, settings: dict) -> None:
        """A request is a command line of sample.py."""
        self.is_chat = "chat" in self.path
        prompt = settings.pop("messages" if self.is_chat else "prompt")
        flags = ["--chat", "--json"] if self.is_chat else []

        for name, value in settings.items():
            if name in FLAGS and value is not None:
                values = value if isinstance(value, list) else [value]
                flags += [f"--{FLAGS[name]}={each}" for each in values]
            elif value and name not in IGNORED:
                raise ValueError(f"unknown setting {name}; choose from {', '.join(FLAGS)}")

        options = parse_options(flags)
        options.given = set()  # clients send a seed for greedy decoding, too
        self.sampler = type(self.sampler)(options, self.sampler.run)
        self.batch = (self.sampler.sampling, options.max_new_tokens, self.sampler.rules)

        if self.is_chat:
            prompt = to_messages(read_turns("the request", prompt))
        self.rows = [self.sampler.encode(prompt, n) for n in range(options.n)]
        left_pad([self.rows[0].prompt_ids], self.sampler.model)  # checks its length
        self.streams = settings.get("stream", False)

    def generate(self) -> None:
        """Generate for this client, and for those that can be in one batch with it."""
        if self not in WAITING:
            return  # another one has done so
        n = 0
        while n < len(WAITING):  # more have come
            n = len(WAITING)
            time.sleep(GATHER)

        WAITING.remove(self)  # after an error, the others try it themselves
        others = [client for client in WAITING if client.batch == self.batch]
        owners = {id(row): client for client in (self, *others) for row in client.rows}
        rows = [row for client in (self, *others) for row in client.rows]

        for row, piece in self.sampler.generate(rows):
            client = owners[id(row)]
            if client.streams and piece:
                client.send_event(client.response([row]))
        for client in others:
            WAITING.remove(client)

    def response(self, rows: list) -> str:
        """The texts; of a stream, what is new in them."""
        choices = []
        for row in rows:
            text = row.stream.text.removeprefix(row.shown)
            row.shown = row.stream.text
            reason = row.stream.finish_reason
            reason = "stop" if reason == "eos" else reason
            choice: dict = {"index": row.sample_id, "finish_reason": reason}

            if self.is_chat:
                message = {"content": text}
                if not self.streams:
                    message["role"] = "assistant"
                choice["delta" if self.streams else "message"] = message
            else:
                choice["text"] = text
                new = row.stream.logprobs[-1:] if self.streams else row.stream.logprobs
                choice["logprobs"] = {"token_logprobs": new}
            choices.append(choice)

        kind = f"chat.completion{'.chunk' if self.streams else ''}"
        kind = kind if self.is_chat else "text_completion"
        now = int(time.time())
        return json.dumps({"id": "", "object": kind, "created": now, "choices": choices})

    def send(self, content: str, kind: str = "application/json", status: int = 200) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.end_headers()
        self.wfile.write(content.encode())

    def send_event(self, content: str) -> None:
        try:
            self.wfile.write(f"data: {content}\n\n".encode())
        except OSError:  # the client is gone
            for row in self.rows:
                row.stream.finish_reason = "stop"


class Server(ThreadingHTTPServer):
    daemon_threads = False  # at the end, all requests are answered
    request_queue_size = 128


def serve(sampler: Any) -> None:
    Client.sampler = sampler
    options = sampler.options
    with Server((options.host, options.serve), Client) as server:
        print(f"http://{options.host}:{server.server_port}")
        server.serve_forever()
