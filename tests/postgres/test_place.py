"""What the URL of a PostgreSQL store says, and what is shown of it."""

from __future__ import annotations

import subprocess
import sys

import pytest

from ulak import ConfigError, MissingExtra, Queue
from ulak.local import check_url, masked
from ulak.storage.postgres.place import place_of


@pytest.mark.parametrize(
    ("url", "conninfo", "schema"),
    [
        ("postgresql://host/app", "postgresql://host/app", "ulak"),
        ("postgres://host/app", "postgresql://host/app", "ulak"),
        ("postgresql://host/app?schema=jobs", "postgresql://host/app", "jobs"),
        (
            "postgresql://host/app?sslmode=require&schema=jobs_2",
            "postgresql://host/app?sslmode=require",
            "jobs_2",
        ),
        ("postgresql:///app?schema=a&host=/tmp/x", "postgresql:///app?host=/tmp/x", "a"),
    ],
)
def test_the_schema_is_taken_out_and_the_rest_is_the_librarys(url, conninfo, schema):
    place = place_of(url)
    assert (place.conninfo, place.schema) == (conninfo, schema)


@pytest.mark.parametrize(
    "schema",
    [
        "",
        "Jobs",
        "1a",
        "a-b",
        "a;drop",
        'a"b',
        "a'b",
        "a%20b",
        "a%00",
        "%7B%7D",
        "pg_jobs",
        "public",
        "a" * 64,
        "a\n",
    ],
)
def test_a_schema_that_is_no_plain_name_of_ours_is_refused(schema):
    with pytest.raises(ConfigError, match="schema="):
        check_url(f"postgresql://host/app?schema={schema}")


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://ada:se?cret@host/app",
        "postgresql://ada:se@cret@host/app",
        "postgresql://ada:se/cret@host/app",
        "postgresql://ada:se#cret@host/app",
        "postgresql://ada:secret",
        "postgresql://ada:secret?sslmode=require",
        "postgresql://host/app?password=se@cret",
    ],
)
def test_a_password_that_is_not_quoted_is_refused_and_no_part_of_it_shown(url):
    with pytest.raises(ConfigError, match="%40") as refused:
        check_url(url)
    assert not any(part in str(refused.value) for part in ("ada", "cret"))


@pytest.mark.parametrize(
    "url",
    [
        "postgresql:///app",
        "postgresql://host:5433/app",
        "postgresql://ada:p%40ss@one:5432,two:5433/app",
        "postgresql://[::1]:5432/app",
        "postgresql://ada@/app?host=/tmp/x",
        "postgresql://",
    ],
)
def test_what_the_library_reads_as_it_was_meant_is_taken(url):
    assert check_url(url)


def test_a_schema_is_given_once():
    with pytest.raises(ConfigError, match="twice"):
        check_url("postgresql://host/app?schema=a&schema=b")


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://ada:s3cr3t@host/app",
        "postgresql://ada:s3cr3t%40x@host:5432/app?sslpassword=s3cr3t",
        "postgresql://host/app?password=s3cr3t",
        "postgresql://host/app?user=ada&passfile=s3cr3t&options=-c%20s3cr3t",
    ],
)
def test_no_secret_of_a_url_is_shown(url):
    shown = (masked(url), str(place_of(url)), repr(place_of(url)))
    assert not [text for text in shown if "s3cr3t" in text or "ada" in text]
    assert all("host" in text and "app" in text for text in shown)


def test_a_url_that_the_library_cannot_read_is_refused_without_what_is_in_it():
    pytest.importorskip("psycopg")
    with pytest.raises(ConfigError, match="cannot be read") as caught:
        Queue("postgresql://ada:s3cr3t%zz@host/app").try_enqueue(b"x")
    assert "s3cr3t" not in str(caught.value)
    assert caught.value.__cause__ is None
    assert caught.value.__suppress_context__


def test_an_option_that_the_library_does_not_know_is_refused():
    pytest.importorskip("psycopg")
    with pytest.raises(ConfigError, match="does not know"):
        Queue("postgresql://host/app?skema=jobs").try_enqueue(b"x")


def test_a_server_that_is_not_there_is_told_with_what_to_do(unused_tcp_port):
    pytest.importorskip("psycopg")
    from ulak import StorageUnavailable

    with pytest.raises(StorageUnavailable, match="nothing was changed") as caught:
        Queue(f"postgresql://ada:s3cr3t@127.0.0.1:{unused_tcp_port}/app").try_enqueue(b"x")
    assert "see whether the server runs" in str(caught.value)
    assert "s3cr3t" not in str(caught.value)


@pytest.fixture
def unused_tcp_port():
    import socket

    # Bound but not listening: nobody else gets it, and nobody answers there.
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        yield taken.getsockname()[1]


def test_without_the_library_the_command_that_installs_it_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "psycopg", None)
    with pytest.raises(MissingExtra, match=r"pip install 'ulak\[postgres\]'"):
        Queue("postgresql://ada:s3cr3t@host/app").try_enqueue(b"x")


def test_neither_the_library_nor_the_store_is_imported_for_another_url():
    code = (
        "import sys, ulak; ulak.Queue('memory://').try_enqueue(b'x'); "
        "print([name for name in sys.modules if name.startswith(('psycopg', 'ulak.storage.postgres'))])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
