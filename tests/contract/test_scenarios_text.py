"""What hurt users of other queues, on odd text and large payloads, for every storage: Y2, Y3, Y6, Z4.

A test's name carries the id of its scenario.
"""

from __future__ import annotations

import pytest

from tests.support.waiting import WAIT_S
from ulak import ArgumentError, Duplicate, NewJob, Outcome, PayloadError

ODD = (
    "a\x00b",
    "\x00",
    "\\u0000",
    "\\x00",
    "it's",
    'a "name"',
    "'; DROP TABLE jobs; --",
    "$1 %s %(payload)s {0} {}",
    "a:b{c}d*e?",
    "line\nline\r\n\ttab",
    "\u2028 \ufeff \ufffe \uffff \x7f \x1b[31m",
    "\U0001f600 é ß 漢",
    "\\",
    "%",
)


def ids(texts):
    return [ascii(text)[1:-1][:24] or "empty" for text in texts]


# Text


@pytest.mark.parametrize("text", ODD, ids=ids(ODD))
def test_Y2_odd_text_comes_back_as_it_was_wherever_it_may_stand(make, text):
    q = make()
    job_id = q.enqueue({text: [text]}, unique_key=text, idempotency_key=text, headers={text: text})
    assert q.enqueue("another", unique_key=text) == job_id
    assert type(q.enqueue("another", idempotency_key=text)) is Duplicate
    lease = q.deliver()
    assert (lease.payload, lease.headers) == ({text: [text]}, {text: text})
    assert q.nack(lease, error=text) is Outcome.OK
    lease = q.deliver()
    assert (lease.id, lease.payload) == (job_id, {text: [text]})
    assert q.ack(lease) is Outcome.OK
    job = q.get(job_id)
    assert (job.payload, job.history[0].error.text) == ({text: [text]}, text)
    assert type(q.enqueue("another", idempotency_key=text)) is Duplicate
    assert type(q.enqueue("free", unique_key=text)) is int


@pytest.mark.parametrize("text", ODD, ids=ids(ODD))
def test_Y2_text_and_bytes_pass_as_they_are(make, text):
    q = make()
    given = [text, text.encode(), text.encode("utf-16")]
    q.enqueue_many(given)
    found = q.deliver_many(3)
    assert [lease.payload for lease in found] == given
    assert [type(lease.payload) for lease in found] == [str, bytes, bytes]


def test_Y2_every_byte_comes_back(make):
    q = make()
    q.enqueue(bytes(range(256)) * 4)
    assert q.deliver().payload == bytes(range(256)) * 4


@pytest.mark.parametrize("text", ["\ud800", "a\udfffb"], ids=ascii)
def test_Y3_a_lone_surrogate_is_refused_in_the_caller_and_nothing_is_stored(make, text):
    q = make()
    for payload in (text, [text], {text: 1}):
        with pytest.raises(PayloadError, match="surrogate"):
            q.enqueue(payload)
    for options in ({"unique_key": text}, {"idempotency_key": text}, {"headers": {"name": text}}):
        with pytest.raises((ArgumentError, PayloadError)):
            q.enqueue("payload", **options)
    with pytest.raises(PayloadError):
        q.enqueue_many(["good", text])
    assert q.counts().total == 0
    job_id = q.enqueue("good")
    lease = q.deliver()
    # What a handler's error says is nobody's to refuse.
    assert q.nack(lease, error=f"no {text}") is Outcome.OK
    assert q.get(job_id).history[0].error.text.startswith("no ")
    assert q.ack(q.deliver()) is Outcome.OK


# Sizes


@pytest.mark.parametrize("size", [7_999, 8_000, 8_001, 65_535, 65_536, 262_144])
def test_Y6_a_payload_of_any_size_up_to_the_limit_passes_and_wakes_a_waiter(make, size):
    q = make()
    waited = make()
    pool = waited.workers(lambda payload: seen.append(len(payload)), count=1)
    seen = []
    with pool:
        q.enqueue(b"x" * size)
        q.mark_producer_finished()
        pool.drain(timeout=WAIT_S)
    assert seen == [size]


@pytest.mark.parametrize("size", [262_145, 1_048_576])
def test_Y6_a_larger_one_is_refused_in_the_caller_and_nothing_is_stored(make, size):
    q = make()
    with pytest.raises(PayloadError, match="262,144"):
        q.enqueue(b"x" * size)
    with pytest.raises(PayloadError, match="262,144"):
        q.enqueue_many([NewJob(b"good"), NewJob(b"x" * size)])
    assert q.counts().total == 0


# Names


HOSTILE = (
    "it's",
    'a"b',
    "a; DROP TABLE jobs",
    "a{b}",
    "a:b",
    "%s",
    "a\nb",
    "a\x00b",
    "a/b",
    "../a",
    "A",
    "",
    " ",
    "é",
    "a" * 65,
    "a" * 10_000,
)


@pytest.mark.parametrize("name", HOSTILE, ids=ids(HOSTILE))
def test_Z4_a_hostile_name_is_refused_and_told_in_few_words(make, name):
    q = make("mail")
    q.enqueue("payload")
    with pytest.raises(ArgumentError, match="name") as refused:
        make(name)
    assert len(str(refused.value)) < 500
    assert q.counts().ready == 1


def test_Z4_whatever_a_job_carries_the_others_stay_as_they_are(make):
    q, other = make("mail"), make("other")
    kept = other.enqueue("kept")
    for text in HOSTILE:
        q.enqueue(text, unique_key=text[:500] or None, idempotency_key=text[:500] or None)
    leases = q.deliver_many(len(HOSTILE))
    assert [lease.payload for lease in leases] == list(HOSTILE)
    for lease in leases:
        q.nack(lease, error=lease.payload)
    assert q.jobs("dead") == []
    assert [q.ack(q.deliver()) for _ in HOSTILE] == [Outcome.OK] * len(HOSTILE)
    assert (other.counts().ready, other.get(kept).payload) == (1, "kept")
    assert q.counts().open == 0
