"""What a class of the user's says as it is made may hold a secret, and must not stop a worker."""

from __future__ import annotations

import logging
import warnings
from dataclasses import dataclass
from typing import Any

import pydantic
import pytest

from tests.support.waiting import WAIT_S, eventually
from ulak import App, ArgumentError
from ulak.core.job import Draft

SECRET = "hunter2"


@dataclass
class Wallet:
    token: str

    def __post_init__(self) -> None:
        # As texts of the decoder's own begin.
        if self.token == SECRET:
            raise ValueError(f"Invalid UUID {self.token}")


@dataclass
class Bomb:
    token: str

    def __post_init__(self) -> None:
        if self.token == SECRET:
            raise SystemExit(f"bad {self.token}")


class Model(pydantic.BaseModel):
    number: int


def put(app: App, task: str, body: bytes) -> int:
    """Store a job as a client of another kind may."""
    (job_id,) = app.queue("default")._edge.store.add("default", [Draft(body, "json", task=task)])
    return job_id


@pytest.mark.parametrize("purse", [Wallet, Bomb])
def test_what_a_class_raises_as_it_is_made_is_stored_and_logged_without_its_text(
    app: App, caplog: pytest.LogCaptureFixture, purse: Any
) -> None:
    caplog.set_level(logging.DEBUG)

    def pay(wallet: Any) -> str:
        return "paid"

    pay.__annotations__["wallet"] = purse
    task = app.task(name="pay")(pay)
    q = app.queue("default")
    with app.workers(1) as pool:
        job_id = put(app, "pay", b'{"wallet":{"token":"hunter2"}}')
        eventually(lambda: q.counts().held == 1)
        # The worker lives, and goes on.
        assert task.enqueue(purse("fine")).result(WAIT_S) == "paid"
        assert pool.size == 1
    info = q.get(job_id)
    assert info is not None
    assert info.error is not None
    assert SECRET not in repr(info.history)
    assert SECRET not in caplog.text
    assert info.attempt == 0


def test_what_a_class_raises_as_it_is_made_does_not_strike_who_looks_at_held_jobs(app: App) -> None:
    def pay(wallet: Any) -> None: ...

    pay.__annotations__["wallet"] = Bomb
    app.task(name="pay")(pay)
    job_id = put(app, "pay", b'{"wallet":{"token":"hunter2"}}')
    (job,) = app.queue("default")._edge.store.get([job_id])
    assert app._handler().fits(job) is False


def test_a_refusal_does_not_repeat_what_a_class_said(app: App) -> None:
    @app.task(name="pay")
    def pay(wallet: Wallet) -> None: ...

    wallet = Wallet("fine")
    wallet.token = SECRET
    with pytest.raises(ArgumentError) as caught:
        pay.enqueue(wallet)
    assert SECRET not in str(caught.value)
    assert caught.value.__cause__ is None


def test_a_model_that_was_made_wrong_is_not_shown_in_a_warning(app: App) -> None:
    @app.task(name="pay")
    def pay(model: Model) -> None: ...

    model = Model(number=1)
    model.number = SECRET  # type: ignore[assignment]
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        with pytest.raises(ArgumentError) as caught:
            pay.enqueue(model)
    assert [str(warning.message) for warning in said if SECRET in str(warning.message)] == []
    assert SECRET not in str(caught.value)
