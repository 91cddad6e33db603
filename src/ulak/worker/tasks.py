"""What a pool runs for an App: its tasks, by the name that a job carries."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import itertools
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import CancelledError
from contextlib import AbstractContextManager
from types import CoroutineType
from typing import Any, Protocol, TypeAlias, cast

from ulak.annotations import function_behind
from ulak.arguments import Misfit, Parameters
from ulak.capture import capture
from ulak.clock import Clock
from ulak.context import Context, Control, set_current
from ulak.core import rules
from ulak.core.job import Cause, Dead, Done, Failure, Hold, Job, Lease
from ulak.core.store import Tasks
from ulak.errors import ArgumentError, PayloadError
from ulak.shape import Arguments
from ulak.worker.advice import Advice, Policy
from ulak.worker.execute import DONE, Ending, Failed, ending_of
from ulak.worker.loop import LoopGone, NoLoop, SharedLoop
from ulak.worker.pulse import Pulse

ErrorTypes: TypeAlias = type[BaseException] | tuple[type[BaseException], ...]
Around: TypeAlias = Callable[[Context], AbstractContextManager[Any]]
"""What goes on around a job's function: entered before it, left after it, also by what it raised."""

NO_LOOP_S = 1.0
"""How long a job waits that found no event loop to run on."""

_log = logging.getLogger("ulak")
_numbers = itertools.count(1)
_have_lost_results: set[str] = set()


class Runnable(Protocol):
    """A task, as far as a worker needs it."""

    @property
    def name(self) -> str:
        """Its name."""

    @property
    def function(self) -> Callable[..., Any]:
        """What is called."""

    @property
    def parameters(self) -> Parameters:
        """What it takes and gives."""

    @property
    def is_async(self) -> bool:
        """Whether a call has to be awaited."""

    @property
    def timeout_s(self) -> float | None:
        """How long an attempt may take."""

    @property
    def kill_after_s(self) -> float | None:
        """How long after it was asked to end its process is killed."""

    @property
    def give_up_on(self) -> tuple[type[BaseException], ...]:
        """Exceptions after which no attempt could succeed."""

    @property
    def retry_on(self) -> tuple[type[BaseException], ...] | None:
        """The only exceptions to try again after; None: all."""

    @property
    def policy(self) -> Policy | None:
        """How long to wait before the next attempt, where that is a function."""


def around_of(given: object) -> Around:
    """What an App is given to go on around each job; a function that yields once is taken for one.

    Raises ArgumentError for what can be seen to be no function that gives a context manager.
    """
    named = getattr(given, "__name__", type(given).__name__)
    if not callable(given):
        raise ArgumentError(f"{_AROUND}, and {named} is no function")
    behind = function_behind(given)
    inner = inspect.unwrap(behind)
    if inspect.iscoroutinefunction(inner) or inspect.isasyncgenfunction(inner):
        raise ArgumentError(f"{_AROUND}, no async one; {named} is async: write it as def, {_ALIKE}")
    try:
        inspect.signature(given).bind(None)
    except TypeError:
        raise ArgumentError(f"{_AROUND}, and nothing else; {named} cannot be called so") from None
    except ValueError:
        # A builtin that does not say what it takes.
        pass
    if inspect.isgeneratorfunction(behind):
        return contextlib.contextmanager(given)
    if isinstance(given, type) and not hasattr(given, "__enter__"):
        raise ArgumentError(f"{_AROUND}; {named} gives none: let it yield once, where the job is to run")
    return cast("Around", given)


_AROUND = "app.around takes a @contextmanager function of a Context"
_ALIKE = "which goes around async def tasks too"


class TaskHandler:
    """Runs each job's task, as `Runs` says.

    by_name: the tasks, by their names and aliases; what is registered later is found too. arounds: likewise.
    """

    def __init__(self, by_name: Mapping[str, Runnable], arounds: Sequence[Around], clock: Clock) -> None:
        self.by_name = by_name
        self._arounds = arounds
        self.clock = clock
        self._tasks: Tasks = frozenset(by_name)
        # Tasks that are not all async run in threads; those that are then share one event loop.
        self.is_async = bool(by_name) and all(task.is_async for task in by_name.values())
        self._loop = SharedLoop(f"ulak-tasks-{next(_numbers)}-loop")
        self.pulse: Pulse | None = self._loop.pulse
        self.stop = None
        self._advice: dict[str, Advice] = {}

    @property
    def tasks(self) -> Tasks:
        """The names of all tasks that are registered by now."""
        if len(self._tasks) != len(self.by_name):
            self._tasks = frozenset(self.by_name)
        return self._tasks

    def open(self, loop: asyncio.AbstractEventLoop | None = None) -> None:
        """Share the caller's loop; without one, the shared loop starts with its first job."""
        if loop is not None:
            self._loop.borrow(loop)

    def close(self) -> None:
        """Cancel what still runs on the shared loop."""
        self._loop.close()

    def fits(self, job: Job) -> bool:
        """Whether a stored job is a call that its task, if it is known here, takes."""
        task = self.by_name.get(job.task or "")
        try:
            return task is not None and bool(task.parameters.decode(job.payload, job.codec))
        except BaseException:  # noqa: BLE001 - a class of the user's may raise anything as it is made
            return False

    def run(self, lease: Lease, context: Context) -> Ending:
        """Run a job in this thread; that of an `async def` on the shared loop, and wait for it here."""
        task = self.by_name.get(lease.work.spec.task or "")
        if task is None:
            return Hold()
        try:
            if task.is_async:
                return self._loop.run(self.arun(lease, context))
            called = _called(task, lease, context)
            if not isinstance(called, tuple):
                return called
            return self._run(task, lease, context, called)
        except LoopGone:
            return rules.give_back(Cause.SHUTDOWN)
        except NoLoop as error:
            # Not the job's fault; somebody else may be able to run it meanwhile.
            return rules.give_back(Cause.RELEASE, delay_s=NO_LOOP_S, error=capture(error))
        except CancelledError:
            # Before the job's first step, or after its last.
            cancelled = CancelledError("the job was cancelled on its event loop, by what else runs there")
            return self.judge(lease, context, cancelled)

    def _run(self, task: Runnable, lease: Lease, context: Context, called: Arguments) -> Ending:
        if task.timeout_s is not None:
            self._limit(context, task.timeout_s)
        set_current(context)
        try:
            if not self._arounds:
                return _finished(task, context, self._call(task, called))
            with self._around(context) as endings:
                endings.append(_finished(task, context, self._call(task, called)))
            return endings[0]
        except (LoopGone, NoLoop):
            raise
        except BaseException as error:  # noqa: BLE001 - a task may raise anything; only the pool stops workers
            return self.judge(lease, context, error)
        finally:
            context.ended = True
            set_current(None)

    def judge(self, lease: Lease, context: Context, error: BaseException) -> Ending:
        """What an exception means for the job that it ended, by what its task says. Never raises."""
        task = self.by_name[lease.work.spec.task or ""]
        failed = _judged(task, context, error)
        if self._is_open_to_advice(task, lease, failed):
            failed = _delayed(failed, self._advice_of(task).ask(lease.attempt, error))
        return failed

    async def arun(self, lease: Lease, context: Context) -> Ending:
        """Run a job in this task of an event loop; that of a `def` in a thread."""
        task = self.by_name.get(lease.work.spec.task or "")
        if task is None:
            return Hold()
        if not task.is_async:
            return await asyncio.to_thread(self.run, lease, context)
        called = _called(task, lease, context)
        if not isinstance(called, tuple):
            return called
        if task.timeout_s is not None:
            self._limit(context, task.timeout_s)
        set_current(context)
        try:
            if not self._arounds:
                return _finished(task, context, await _acall(task, context, called))
            with self._around(context) as endings:
                endings.append(_finished(task, context, await _acall(task, context, called)))
            return endings[0]
        except BaseException as error:  # noqa: BLE001 - as above
            failed = _judged(task, context, error)
            if self._is_open_to_advice(task, lease, failed):
                failed = _delayed(failed, await self._advice_of(task).aask(lease.attempt, error))
            return failed
        finally:
            context.ended = True
            set_current(None)

    @contextlib.contextmanager
    def _around(self, context: Context) -> Iterator[list[Ending]]:
        """What goes on around a job's function; inside, its ending is appended to what this gives.

        If what was raised is swallowed, the job has succeeded, unless its time is over.
        """
        endings: list[Ending] = []
        with contextlib.ExitStack() as stack:
            for around in self._arounds:
                stack.enter_context(around(context))
            yield endings
        if not endings:
            if context.timed_out:
                raise TimeoutError
            endings.append(DONE)

    def _call(self, task: Runnable, called: Arguments) -> object:
        result: object = task.function(*called[0], **called[1])
        # A def that gives a coroutine: what a decorator has made of an async def, perhaps.
        return self._loop.run(result) if isinstance(result, CoroutineType) else result

    def _limit(self, context: Context, timeout_s: float) -> None:
        clock, end = self.clock, self.clock.interval() + timeout_s
        context.limit(lambda: clock.interval() >= end)

    def _is_open_to_advice(self, task: Runnable, lease: Lease, ending: Ending) -> bool:
        is_asked = task.policy is not None and isinstance(ending, Failed) and ending.delay_s is None
        return is_asked and lease.attempt < lease.max_attempts

    def _advice_of(self, task: Runnable) -> Advice:
        assert task.policy is not None
        if (advice := self._advice.get(task.name)) is None:
            # Where two come at once, one of them is forgotten, with what it would have said twice.
            advice = self._advice.setdefault(task.name, Advice(task.name, task.policy, self.clock))
        return advice


def _called(task: Runnable, lease: Lease, context: Context) -> Arguments | Ending:
    """The arguments of the call, or how the delivery ends without one."""
    parameters, work = task.parameters, lease.work
    try:
        args, kwargs = parameters.decode(work.body, work.spec.codec)
    except (Misfit, ArgumentError) as misfit:
        # Not failed: the next deploy may take it, and the attempts are the task's own.
        return Hold(cause=Cause.UNDECODABLE, error=Failure("ArgumentMisfit", str(misfit)))
    except PayloadError as error:
        return Dead(cause=Cause.UNDECODABLE, error=capture(error))
    except BaseException as error:  # noqa: BLE001 - a class of the user's may raise anything as it is made
        # Not its text, which may hold a value.
        text = f"{task.name}: an argument's own class raised {type(error).__name__} as it was made"
        return Hold(cause=Cause.UNDECODABLE, error=Failure("ArgumentMisfit", text))
    if parameters.context_name is None:
        return args, kwargs
    if parameters.context_is_first:
        return (context, *args), kwargs
    return args, {**kwargs, parameters.context_name: context}


async def _acall(task: Runnable, context: Context, called: Arguments) -> object:
    if task.timeout_s is not None:
        return await _acall_in_time(task, context, called)
    result: object = await task.function(*called[0], **called[1])
    return await result if isinstance(result, CoroutineType) else result


async def _acall_in_time(task: Runnable, context: Context, called: Arguments) -> object:
    timer = asyncio.timeout(task.timeout_s)
    try:
        async with timer:
            result: object = await task.function(*called[0], **called[1])
            return await result if isinstance(result, CoroutineType) else result
    except TimeoutError:
        # By the loop's clock; the job's own may not have got there, or be a test's.
        if timer.expired():
            context.limit(lambda: True)
        raise


def _finished(task: Runnable, context: Context, result: object) -> Ending:
    """How a delivery ends whose function has returned. Raises what makes it a failure."""
    body = None if result is None else task.parameters.encode_result(result)
    if body is not None and context.acked and task.name not in _have_lost_results:
        _have_lost_results.add(task.name)
        _log.warning(
            "task %s: what it returns is not stored, since context.ack(connection=) has finished its job "
            "before; keep it in that transaction, in a table of yours (said once)",
            task.name,
        )
    if context.timed_out:
        raise TimeoutError
    return DONE if body is None else Done(body)


def _judged(task: Runnable, context: Context, error: BaseException) -> Ending:
    """What an exception means for the job, by what the task says of it. Never raises."""
    try:
        # By its type alone: an exception's own `__class__` may raise.
        kind = type(error)
        if issubclass(kind, Control):
            return ending_of(error)
        if context.timed_out:
            return Failed(Cause.TIMEOUT, _too_late(task, error))
        if _is_one_of(error, task.give_up_on):
            return Dead(cause=Cause.ERROR, error=capture(error))
        if task.retry_on is not None and not _is_one_of(error, task.retry_on):
            return Dead(cause=Cause.ERROR, error=capture(error))
    except BaseException:  # noqa: BLE001, S110 - a class may say what it likes of its subclasses
        pass
    return ending_of(error)


def _is_one_of(error: BaseException, kinds: tuple[type[BaseException], ...]) -> bool:
    """Whether an exception is of these classes; a group of several is if each of them is."""
    if issubclass(type(error), kinds):
        return True
    if not kinds or not issubclass(type(error), BaseExceptionGroup):
        return False
    return all(_is_one_of(part, kinds) for part in error.exceptions)  # type: ignore[attr-defined]


def _too_late(task: Runnable, error: BaseException) -> Failure:
    failure = capture(error)
    if failure.text:
        return failure
    text = f"the job ran longer than the task's timeout of {task.timeout_s:g} s"
    return Failure(failure.type, text, failure.traceback)


def _delayed(ending: Ending, delay_s: float | None) -> Ending:
    assert isinstance(ending, Failed)
    return Failed(ending.cause, ending.error, delay_s)
