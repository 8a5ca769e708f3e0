"""A stand-in for a judge's server: scores each episode by its number of turns, and fails a share of its calls.

    python tests/rewards/judge_server.py --port 8123 --fail-share 0.2

Which calls fail is drawn from a seed, and of them half answer 500, a quarter hold no score, a quarter break off.
"""

import argparse
import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import numpy as np


class JudgeServer(ThreadingHTTPServer):
    """`with JudgeServer(...) as server:` serves in the background at `server.base_url`."""

    daemon_threads = True

    def __init__(self, port=0, fail_share=0.2, seed=0, status=None):
        super().__init__(("127.0.0.1", port), _Handler)
        self.base_url = f"http://127.0.0.1:{self.server_port}/v1"
        self.fail_share, self.status = fail_share, status
        self.rng, self.lock = np.random.default_rng(seed), threading.Lock()
        self.calls = self.failed = 0
        self.requests: list[dict] = []

    def __enter__(self):
        threading.Thread(target=self.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()
        return self

    def __exit__(self, *_):
        self.shutdown()
        self.server_close()

    def draw(self):
        """(whether this call fails, which kind of failure)."""
        with self.lock:
            self.calls += 1
            fails, kind = self.rng.random() < self.fail_share, self.rng.random()
            self.failed += fails
            return fails, kind


class _Handler(BaseHTTPRequestHandler):
    def do_POST(self):
        request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.requests.append({"authorization": self.headers["Authorization"], **request})
        fails, kind = self.server.draw()
        if self.server.status is not None:  # as a server does that repeats the key in its complaint
            return self._answer(self.server.status, {"error": {"message": f"bad key {self.headers['Authorization']}"}})
        if fails and kind < 0.5:
            return self._answer(500, {"error": {"message": "told to fail"}})
        if fails and kind >= 0.75:
            return self.close_connection  # without a word
        turns = request["messages"][-1]["content"].count("## Turn")
        content = "I cannot say." if fails else f"Fine. <score>{min(1.0, 0.25 * turns)}</score>"
        message = {"role": "assistant", "content": content}
        choice = {"index": 0, "finish_reason": "stop", "message": message}
        body = {"id": "1", "object": "chat.completion", "created": 0, "model": request["model"], "choices": [choice]}
        return self._answer(200, body)

    def _answer(self, status, body):
        data = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_):
        """Silent."""


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--port", type=int, default=8123)
    parser.add_argument("--fail-share", type=float, default=0.2)
    options = parser.parse_args()
    with JudgeServer(options.port, options.fail_share) as running:
        print(f"judging at {running.base_url}; Ctrl-C ends it", flush=True)
        try:
            threading.Event().wait()
        except KeyboardInterrupt:
            print(f"{running.calls} calls, {running.failed} failed")
