"""examples/fetch_http.py: each path comes to one end, whatever the server does."""

from __future__ import annotations

import asyncio
import importlib.util
import os
import random
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from email.message import Message
from email.utils import format_datetime
from pathlib import Path
from types import ModuleType

import pytest

import ulak

EXAMPLE = Path(__file__).parents[2] / "examples" / "fetch_http.py"
MAX_ATTEMPTS = 4


def start(*arguments: str) -> subprocess.Popen[str]:
    command = [sys.executable, str(EXAMPLE), *arguments]
    environment = os.environ | {"PYTHONPATH": str(Path(ulak.__file__).parents[1])}
    pipe = subprocess.PIPE
    return subprocess.Popen(command, stdout=pipe, stderr=pipe, env=environment, text=True)


@pytest.fixture(scope="module")
def example() -> ModuleType:
    spec = importlib.util.spec_from_file_location("fetch_http", EXAMPLE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def foretold(paths: int, seed: int, fail_rate: float) -> str:
    """The summary that the server's draws alone make necessary."""
    fetched = retried = given_up = 0
    for number in range(paths):
        draws = [
            random.Random(f"{seed} /page/{number} {asked}").random() for asked in range(1, 1 + MAX_ATTEMPTS)
        ]
        failed_first = next((n for n, draw in enumerate(draws) if draw >= fail_rate), MAX_ATTEMPTS)
        given_up += failed_first == MAX_ATTEMPTS
        fetched += failed_first < MAX_ATTEMPTS
        retried += min(failed_first, MAX_ATTEMPTS - 1)
    return f"{fetched} fetched, {retried} retried, {given_up} given up"


def test_every_path_is_fetched_or_given_up_as_the_seed_says() -> None:
    # Several seeds and rates at once, from a server that never fails to one that always does.
    runs = [(60, seed, rate) for seed, rate in [(1, 0.3), (2, 0.3), (3, 0.7)]] + [
        (9, 4, 1.0),
        (9, 5, 0.0),
        (0, 6, 0.3),
    ]
    processes = [
        start("--paths", str(paths), "--seed", str(seed), "--fail-rate", str(rate))
        for paths, seed, rate in runs
    ]
    for arguments, process in zip(runs, processes, strict=True):
        output, errors = process.communicate(timeout=60)
        *given_up, summary = output.splitlines()

        assert (process.returncode, errors, summary) == (0, "", foretold(*arguments))
        assert len(given_up) == int(summary.split()[-3])
        assert all(
            line.startswith("given up: /page/") and line.count("HTTP 50") == MAX_ATTEMPTS for line in given_up
        )


@pytest.mark.parametrize(
    ("header", "expected"),
    [("0", 0.0), ("7", 7.0), ("60", 60.0), ("61", 60.0), ("9" * 400, 60.0)]
    + [
        (text, None)
        for text in ("", "-1", "1.5", "soon", "Fri, 31 Dec", "²", "Fri, 31 Dec 1999 23:59:59 -0000")
    ]
    + [("Fri, 31 Dec 1999 23:59:59 GMT", 0.0), ("Fri, 31 Dec 9999 23:59:59 GMT", 60.0)],
)
def test_retry_after_is_seconds_or_a_date_within_limits(
    example: ModuleType, header: str, expected: float | None
) -> None:
    # What a server may send, and what it should not.
    assert example.retry_after_s(header) == expected


def test_retry_after_as_a_date_is_the_time_until_then(example: ModuleType) -> None:
    # A date has whole seconds, so up to one is lost.
    soon = datetime.now(UTC) + timedelta(seconds=30)

    assert 28 < example.retry_after_s(format_datetime(soon, usegmt=True)) <= 30


async def answer_of(example: ModuleType, answer: bytes) -> tuple[int, Message, bytes]:
    """What `get` makes of these bytes from a server that then closes the connection."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(answer)
        writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        answered: tuple[int, Message, bytes] = await example.get(port, "/a b\r\nX: y")
        return answered


def test_an_answer_is_read_to_its_length_and_no_further(example: ModuleType) -> None:
    # More bytes come than the length says.
    answer = b"HTTP/1.1 503 Busy\r\nretry-after: 5\r\nContent-Length: 2\r\n\r\nok and more"

    status, headers, body = asyncio.run(answer_of(example, answer))

    assert (status, headers["Retry-After"], body) == (503, "5", b"ok")


@pytest.mark.parametrize(
    "answer",
    [
        b"",
        b"HTTP/1.1 200 OK\r\n",
        b"HTTP/1.1 200 OK\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nshort",
        b"HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 1048577\r\n\r\n",
        b"HTTP/2 200 OK\r\nContent-Length: 0\r\n\r\n",
        b"220 mail.example.org ESMTP\r\nContent-Length: 0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nX: " + b"y" * 20_000 + b"\r\nContent-Length: 0\r\n\r\n",
    ],
)
def test_an_answer_that_is_cut_or_too_long_or_not_http_raises(example: ModuleType, answer: bytes) -> None:
    # So the attempt fails, and is made again.
    with pytest.raises((ValueError, EOFError, asyncio.LimitOverrunError)):
        asyncio.run(answer_of(example, answer))
