"""A stand-in for a chat API, OpenAI's or Anthropic's, which fails a share of its calls and limits their rate.

    python tests/eval/chat_server.py --port 8123 --fail-share 0.2 --limit-share 0.1

Every answer is the same reply; which calls fail (500), and which are told to wait (429 with Retry-After), is drawn from
a seed.
"""

import argparse
import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import numpy as np

REPLY = "<think>Down it is.</think><answer>Down</answer>"


class ChatServer(ThreadingHTTPServer):
    """`with ChatServer(...) as server:` serves in the background at `server.url`.

    Args:
        reply: the text of every answer; with a `finish` and the stop string that it ended at.
        fail_share, limit_share: of calls that are answered 500, and 429 with `retry_after` (of which it is the value).
        status: answer all calls so, with `complaint`; `then`: all but the first.
    """

    daemon_threads = True
    request_queue_size = 64

    def __init__(self, port=0, reply=REPLY, fail_share=0.0, limit_share=0.0, retry_after="0.002", seed=0, status=None,
                 complaint=None, finish="stop", stop_reason=None):  # fmt: skip
        super().__init__(("127.0.0.1", port), _Handler)
        self.url = f"http://127.0.0.1:{self.server_port}"
        self.reply, self.fail_share, self.limit_share, self.retry_after = reply, fail_share, limit_share, retry_after
        self.then = None
        self.status, self.complaint, self.finish, self.stop_reason = status, complaint or {}, finish, stop_reason
        self.rng, self.lock = np.random.default_rng(seed), threading.Lock()
        self.requests, self.statuses = [], []

    def __enter__(self):
        threading.Thread(target=self.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
        return self

    def __exit__(self, *_):
        self.shutdown()
        self.server_close()

    def draw(self):
        """The status of the next answer."""
        with self.lock:
            share = self.rng.random()
            limited = share < self.fail_share + self.limit_share
            if self.then and self.statuses:
                self.status = self.then
            status = self.status or (500 if share < self.fail_share else 429 if limited else 200)
            self.statuses.append(status)
            return status


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self):
        request, server = json.loads(self.rfile.read(int(self.headers["Content-Length"]))), self.server
        key = self.headers.get("Authorization") or self.headers.get("x-api-key")
        server.requests.append({"key": key, **request})
        status = server.draw()
        if status != 200:
            # as a server does that repeats the key in its complaint
            return self._answer(status, {"error": {"message": f"no ({key})", "type": "x", **server.complaint}})
        if self.path.endswith("/messages"):
            stop = {"length": "max_tokens"}.get(server.finish, "stop_sequence" if server.stop_reason else "end_turn")
            return self._answer(200, {
                "id": "1", "type": "message", "role": "assistant", "model": request["model"],
                "content": [{"type": "text", "text": server.reply}], "stop_reason": stop,
                "stop_sequence": server.stop_reason, "usage": {"input_tokens": 100, "output_tokens": 10},
            })  # fmt: skip
        message = {"role": "assistant", "content": server.reply}
        choice = {"index": 0, "finish_reason": server.finish, "message": message, "stop_reason": server.stop_reason}
        usage = {"prompt_tokens": 100, "completion_tokens": 10, "total_tokens": 110}
        return self._answer(200, {"id": "1", "object": "chat.completion", "created": 0, "model": request["model"],
                                  "choices": [choice], "usage": usage})  # fmt: skip

    def _answer(self, status, body):
        data = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        if status == 429:
            self.send_header("Retry-After", self.server.retry_after)
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_):
        """Silent."""


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--port", type=int, default=8123)
    parser.add_argument("--fail-share", type=float, default=0.2)
    parser.add_argument("--limit-share", type=float, default=0.1)
    parser.add_argument("--retry-after", default="1")
    options = parser.parse_args()
    with ChatServer(options.port, fail_share=options.fail_share, limit_share=options.limit_share,
                    retry_after=options.retry_after) as running:  # fmt: skip
        print(f"answering at {running.url}/v1; Ctrl-C ends it", flush=True)
        try:
            threading.Event().wait()
        except KeyboardInterrupt:
            print({status: running.statuses.count(status) for status in sorted(set(running.statuses))})
