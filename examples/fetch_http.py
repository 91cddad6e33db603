"""Fetch many paths from an HTTP server that is often busy, with `async def` workers.

    python examples/fetch_http.py [--paths 300] [--seed 1] [--fail-rate 0.3]

The server is a local one that fails by the seed: two in three failures are a 503 that says in Retry-After
when to come back, the others a plain 500. The workers answer by `raise Retry(after=...)`: the job then waits
in the queue, while they go on with others. What failed four times is a dead letter with its four errors.

Exit status: 0 if every path was fetched or given up exactly once and none was asked for too early, else 1.
"""

import argparse
import asyncio
import random
import re
import socketserver
import sys
import threading
import time
from collections import Counter
from datetime import UTC, datetime
from email.message import Message
from email.utils import parsedate_to_datetime
from http.client import parse_headers
from http.server import BaseHTTPRequestHandler
from io import BytesIO
from urllib.parse import quote

from ulak import AsyncQueue, Backoff, Reject, Retry

HEAD_BYTES_MAX = 16 * 1024
BODY_BYTES_MAX = 1024 * 1024
RETRY_AFTER_MAX_S = 60.0


class BusyServer(socketserver.ThreadingTCPServer):
    """What a request gets depends on the seed, its path and how often that was asked for, on nothing else."""

    daemon_threads = True
    request_queue_size = 128  # the default of 5 lets clients that come together wait for a second

    def __init__(self, seed: int, fail_rate: float) -> None:
        super().__init__(("127.0.0.1", 0), BusyHandler)
        self.seed, self.fail_rate = seed, fail_rate
        self.asked: Counter[str] = Counter()
        self.not_before: dict[str, float] = {}
        self.early = 0

    def status(self, path: str) -> int:
        """The answer to this request. No two for one path come at a time: its job has one holder."""
        self.asked[path] += 1
        self.early += time.monotonic() < self.not_before.get(path, 0.0)
        draw = random.Random(f"{self.seed} {path} {self.asked[path]}").random()
        return 200 if draw >= self.fail_rate else 503 if draw < self.fail_rate * 2 / 3 else 500


class BusyHandler(BaseHTTPRequestHandler):
    """Answers one request."""

    def do_GET(self) -> None:
        """Send a page, or the failure that is due."""
        server = self.server
        assert isinstance(server, BusyServer)
        status = server.status(self.path)
        self.send_response(status)
        if status == 503:
            server.not_before[self.path] = time.monotonic() + 1
            self.send_header("Retry-After", "1")
        body = f"{status} {self.path}\n".encode()
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_request(self, code: object = "-", size: object = "-") -> None:
        """Say nothing."""


async def get(port: int, path: str) -> tuple[int, Message, bytes]:
    """Status, headers and body of a path. Raises if they are late, cut short, too long or not understood."""
    async with asyncio.timeout(5):
        reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=HEAD_BYTES_MAX)
        try:
            request = f"GET {quote(path)} HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nConnection: close\r\n\r\n"
            writer.write(request.encode())
            first, _, rest = (await reader.readuntil(b"\r\n\r\n")).partition(b"\r\n")
            status = re.fullmatch(rb"HTTP/1\.[01] (\d{3})( .*)?", first)
            headers = parse_headers(BytesIO(rest))
            length = headers.get("Content-Length", "")
            if status is None or not length.isdecimal() or int(length) > BODY_BYTES_MAX:
                raise ValueError("not an answer of HTTP/1.1 with a Content-Length within the limit")
            return int(status[1]), headers, await reader.readexactly(int(length))
        finally:
            writer.transport.abort()  # nothing more is to be said or heard


def retry_after_s(value: str) -> float | None:
    """A Retry-After header, which may be a date, in seconds, at most a minute. None: it says neither."""
    try:
        now = datetime.now(UTC)
        wait_s = float(value) if value.isdecimal() else (parsedate_to_datetime(value) - now).total_seconds()
    except (TypeError, ValueError):  # no date, or one without a time zone
        return None
    return min(max(wait_s, 0.0), RETRY_AFTER_MAX_S)


async def run(server: BusyServer, paths: list[str]) -> bool:
    """Fetch the paths and print a summary; whether each came to one end, and none was asked for too early."""
    ended: Counter[str] = Counter()

    async def fetch(path: str) -> None:
        status, headers, _ = await get(server.server_address[1], path)  # raising is a failed attempt too
        if status == 429 or status >= 500:
            # Without a usable header this is after=None: by the queue's backoff.
            raise Retry(after=retry_after_s(headers.get("Retry-After", "")), reason=f"HTTP {status}")
        if status != 200:
            raise Reject(f"HTTP {status}")  # dead at once: it would be the same next time
        ended[path] += 1

    async with AsyncQueue(capacity=64, max_attempts=4, backoff=Backoff(base=0.05, cap=0.5)) as q:
        async with q.workers(fetch, count=16) as pool:
            async with q.producer():
                for path in paths:
                    await q.enqueue(path)  # waits while 64 are unfinished
            await pool.drain()
            metrics = await pool.metrics()
        for job in await q.jobs("dead", limit=100_000):
            ended[job.payload] += 1
            print(f"given up: {job.payload} ({', '.join(a.error.text for a in job.history if a.error)})")
    print(f"{metrics.succeeded} fetched, {metrics.retries} retried, {metrics.dead_lettered} given up")
    return ended == Counter(paths) and server.early == 0


def main() -> int:
    """Run, and say by the exit status how it went."""
    parser = argparse.ArgumentParser(description="Fetch paths from a busy local HTTP server.")
    for option, default in (("--paths", 300), ("--seed", 1), ("--fail-rate", 0.3)):
        parser.add_argument(option, type=type(default), default=default)
    args = parser.parse_args()
    with BusyServer(args.seed, args.fail_rate) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            return 0 if asyncio.run(run(server, [f"/page/{n}" for n in range(args.paths)])) else 1
        except KeyboardInterrupt:
            return 130
        finally:
            server.shutdown()


if __name__ == "__main__":
    sys.exit(main())
