"""Serve: OpenAI's API for a run, and a page to try it."""

import json
import time
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from configs.cli import print
from configs.errors import errors_as
from data.chat import to_messages
from data.sources.tables import read_turns
from model.generate.options import parse_options, refuse

GATHER = 0.005  # seconds in which requests can join a batch
# settings of a request that are no options of sample.py
OTHERS = ("model", "user", "messages", "prompt", "stream", "stream_options")
# and options that a request cannot set
RUN = """
    beams length_penalty slide special no_stream score embed explain source file interactive serve
    host run checkpoint parts device precision system debug
"""
MODELS = {"object": "list", "data": [{"id": "run", "object": "model"}]}
WAITING: list = []  # clients
WORKER = ThreadPoolExecutor(1)


class Client(BaseHTTPRequestHandler):
    """A client with a request. Those that wait with the same settings are one batch."""

    sampler: Any  # of the server; then of the request

    def do_GET(self) -> None:
        if self.path == "/":
            page = Path(__file__).with_suffix(".html")
            self.send(page.read_text(encoding="utf-8"), "text/html")
        else:
            self.send(json.dumps(MODELS))

    def do_POST(self) -> None:
        try:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            self.read_request(json.loads(body))
            if self.streams:
                self.send("", "text/event-stream")

            WAITING.append(self)
            WORKER.submit(self.generate).result()
        except Exception as error:  # whatever was asked, the server goes on
            self.send(json.dumps({"error": {"message": str(error)}}), status=400)
            return

        if self.streams:
            self.send_event("[DONE]")
        else:
            self.send(self.response(enumerate(self.rows)))

    def read_request(self, settings: dict) -> None:
        """A request has the options of sample.py."""
        self.is_chat = "messages" in settings
        flags = ["--chat", "--json"] if self.is_chat else []
        for name, value in settings.items():
            flag = name.replace("max_", "max_new_").replace("_", "-")
            if name not in OTHERS and value is not None:
                values = value if isinstance(value, list) else [value]
                flags += [f"--{flag}={each}" for each in values]

        options = parse_options(flags)
        refuse(RUN, options, "a request cannot set it")
        options.given = set()  # clients send a seed for greedy decoding, too
        self.sampler = type(self.sampler)(options, self.sampler.run)
        self.kind = (self.sampler.sampling, options.max_new_tokens)

        prompts = settings.get("prompt", "")
        if isinstance(prompts, str):
            prompts = [prompts]
        if self.is_chat:
            prompts = [to_messages(read_turns("the request", settings["messages"]))]
        self.rows = [self.sampler.encode(prompt, n) for prompt in prompts for n in range(options.n)]
        self.streams = settings.get("stream", False)

    def generate(self) -> None:
        """Generate for all clients like this one, unless another one has done so."""
        if self not in WAITING:
            return
        n = 0
        while n < len(WAITING):  # more have come
            n = len(WAITING)
            time.sleep(GATHER)

        rows = []
        owners = {}
        for client in [client for client in WAITING if client.kind == self.kind]:
            WAITING.remove(client)
            rows += client.rows
            for index, row in enumerate(client.rows):
                owners[id(row)] = (client, index)

        for row, piece in self.sampler.generate(rows):
            client, index = owners[id(row)]
            if client.streams and piece:
                client.send_event(client.response([(index, row)]))

    def response(self, rows: Iterable[tuple[int, Any]]) -> str:
        """The texts of rows, by index; of a stream, what is new in them."""
        choices = []
        for index, row in rows:
            text = row.stream.text.removeprefix(row.shown)
            row.shown = row.stream.text

            reason = row.stream.finish_reason
            choice = {"index": index, "finish_reason": "stop" if reason == "eos" else reason}
            if self.is_chat:
                message = {"role": "assistant", "content": text}
                choice["delta" if self.streams else "message"] = message
            else:
                choice["text"] = text
                choice["logprobs"] = {"token_logprobs": row.stream.logprobs}
            choices.append(choice)

        kind = "chat.completion" if self.is_chat else "text_completion"
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
    place = f"http://{options.host}:{options.serve}"
    address = (options.host, options.serve)
    with errors_as(ValueError, f"cannot serve {place}"), Server(address, Client) as server:
        print(place)
        server.serve_forever()
