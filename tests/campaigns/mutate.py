"""Mutants of core: each small change of its code must make a test fail: `mutate [MODULE ...]`.

A mutant is one change of one place in one module of `ulak.core`. It lives in a process of its own, forked
from this one, which holds pytest and no ulak: the loader hands it the changed code, and no file changes. The
module's own tests of `tests/core` judge it first; if they let it pass, so do all tests of core and those of
the storages. One that never ends is stopped, which counts as killed.

Not changed: docstrings, annotations and what only a type checker reads.
"""

from __future__ import annotations

import ast
import gc
import importlib.machinery
import os
import resource
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from functools import singledispatch
from itertools import takewhile
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import hypothesis.strategies  # noqa: F401 - once, before the forks
import pytest
import rich.pretty  # noqa: F401

SCORE_MIN = 90.0
# An endless loop is known by the work it does, on a busy machine too; one that only waits, by the clock.
WORK_LIMIT_S = 20.0
WAIT_LIMIT_S = 300.0
MEMORY_BYTES_MAX = 4 * 2**30
SHOWN_CHARS = 90
CORE = Path("src/ulak/core")
OWN_TESTS = {
    "backoff": "test_backoff",
    "flows": "test_flows*",
    "job": "test_[jv]*",
    "rules": "test_rules",
    "store": "test_[jv]*",
}
PLUGINS = ("pytest_timeout", "no:cacheprovider", "no:unraisableexception", "no:threadexception")
PYTEST = ("-x", "-q", "--timeout=0", *(f"-p{name}" for name in PLUGINS))
NOT_JUDGED = 70
NONE = {"killed": 0, "stopped": 0, "survived": 0, "equivalent": 0}

# What a type checker alone reads.
TYPING = {"cast", "TypeVar", "ParamSpec", "assert_never"}

COMPARISONS: dict[type[ast.cmpop], list[type[ast.cmpop]]] = {
    ast.Lt: [ast.LtE, ast.GtE],
    ast.LtE: [ast.Lt, ast.Gt],
    ast.Gt: [ast.GtE, ast.LtE],
    ast.GtE: [ast.Gt, ast.Lt],
    ast.Eq: [ast.NotEq],
    ast.NotEq: [ast.Eq],
    ast.Is: [ast.IsNot],
    ast.IsNot: [ast.Is],
    ast.In: [ast.NotIn],
    ast.NotIn: [ast.In],
}
OPERATORS: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Div,
    ast.Div: ast.Mult,
    ast.Pow: ast.Mult,
}
NAMES = {"min": "max", "max": "min", "all": "any", "any": "all"}

Node = TypeVar("Node", bound=ast.AST)

# Survivors that nobody can tell from the code as it is: (line of source, change) and why.
_ZIP = 'for name, value in zip(("base", "cap", "floor"), (base, cap, floor), strict=True):'
EQUIVALENT = {
    (
        _ZIP,
        ", 'floor'), (base, cap, floor), strict=True)  ->  , 'floor'), (base, cap, floor))",
    ): "both are three",
    (_ZIP, "True  ->  False"): "both are three",
    ("assert state is not None", "assert state is not None  ->  pass"): "a verdict removes no job",
    ("return False, Event.ACK, now_at", "False  ->  True"): "an ack's totals are the same either way",
    ("return (yield from settle(local, [(lease, verdict)]))[0]", "0  ->  -1"): "there is one answer",
}


class Mutant(NamedTuple):
    """One change: where, in which line of source, from what to what, and the module's code with it."""

    path: Path
    line: int
    source: str
    change: str
    code: Any


Slot = tuple[Any, Any, Any]
"""A place in the tree: a list or the fields of a node, the index or the name in it, and what is there."""


def slots(node: ast.AST) -> Iterator[Slot]:
    """Every place below `node` that may be changed, from the top of the file to its end."""
    for name, value in ast.iter_fields(node):
        if name in ("annotation", "returns", "ctx", "op", "ops"):
            continue
        places = [(value, i, item) for i, item in enumerate(value)] if isinstance(value, list) else []
        if is_call_of(node, TYPING):
            places = places[1:]
        for holder, key, item in places or [(vars(node), name, value)]:
            # The comparison itself is changed, which says more than another thing than None would.
            is_compared_none = isinstance(node, ast.Compare) and is_none(item)
            if isinstance(item, ast.AST) and not is_for_types(item) and not is_compared_none:
                yield holder, key, item
                yield from slots(item)


def is_for_types(node: ast.AST) -> bool:
    match node:
        case ast.Import() | ast.ImportFrom() | ast.AnnAssign(annotation=ast.Name(id="TypeAlias")):
            return True
        case ast.ClassDef(bases=[ast.Name(id="Protocol")]) | ast.Expr(value=ast.Constant()):
            return True
        case ast.Assign() | ast.Expr():
            return is_call_of(node.value, TYPING - {"cast"})
    return False


def is_call_of(node: ast.AST, names: set[str]) -> bool:
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in names


@singledispatch
def changes(node: ast.AST) -> Iterator[Any]:
    """What may stand in the place of `node`."""
    yield from ()


@changes.register
def of_constant(node: ast.Constant) -> Iterator[ast.Constant]:
    match node.value:
        case bool():
            yield ast.Constant(not node.value)
        case int() | float():
            yield ast.Constant(node.value + 1)
            yield ast.Constant(node.value - 1)
        case str():
            yield ast.Constant(f"XX{node.value}XX")
        case None:
            yield ast.Constant(0)


@changes.register
def of_comparison(node: ast.Compare) -> Iterator[ast.Compare]:
    for i, op in enumerate(node.ops):
        for kind in COMPARISONS[type(op)]:
            yield ast.Compare(node.left, [*node.ops[:i], kind(), *node.ops[i + 1 :]], node.comparators)


@changes.register
def of_and_or(node: ast.BoolOp) -> Iterator[ast.expr]:
    yield ast.BoolOp(ast.Or() if isinstance(node.op, ast.And) else ast.And(), node.values)
    for rest in without_each(node.values):
        yield rest[0] if len(rest) == 1 else ast.BoolOp(node.op, rest)


@changes.register
def of_sign(node: ast.UnaryOp) -> Iterator[ast.expr]:
    yield node.operand


@changes.register
def of_arithmetic(node: ast.BinOp) -> Iterator[ast.expr]:
    if isinstance(node.op, ast.BitOr):
        yield from (node.left, node.right)
    elif type(node.op) in OPERATORS:
        yield ast.BinOp(node.left, OPERATORS[type(node.op)](), node.right)


@changes.register
def of_choice(node: ast.IfExp) -> Iterator[ast.expr]:
    yield from (node.body, node.orelse)


@changes.register
def of_call(node: ast.Call) -> Iterator[ast.Call]:
    if isinstance(node.func, ast.Name) and node.func.id in NAMES:
        yield ast.Call(ast.Name(NAMES[node.func.id], ast.Load()), node.args, node.keywords)
    for rest in without_each(node.keywords):
        yield ast.Call(node.func, node.args, rest)


@changes.register(ast.Tuple)
@changes.register(ast.List)
@changes.register(ast.Set)
def of_collection(node: ast.Tuple | ast.List | ast.Set) -> Iterator[ast.expr]:
    for rest in without_each(node.elts):
        is_read = isinstance(node, ast.Set) or isinstance(node.ctx, ast.Load)
        if is_read and (rest or not isinstance(node, ast.Set)):
            yield with_field(node, "elts", rest)


@changes.register
def of_dict(node: ast.Dict) -> Iterator[ast.Dict]:
    for keys, values in zip(without_each(node.keys), without_each(node.values), strict=True):
        yield ast.Dict(keys, values)


@changes.register(ast.If)
@changes.register(ast.While)
def of_condition(node: ast.If | ast.While) -> Iterator[ast.stmt]:
    if not isinstance(node.test, ast.Constant):
        yield with_field(node, "test", ast.Constant(True))
        yield with_field(node, "test", ast.Constant(False))


@changes.register
def of_return(node: ast.Return) -> Iterator[ast.Return]:
    if node.value is not None and not is_none(node.value):
        yield ast.Return(ast.Constant(None))


@changes.register
def of_assignment(node: ast.Assign) -> Iterator[ast.Assign]:
    if not isinstance(node.value, ast.Constant):
        yield ast.Assign(node.targets, ast.Constant(None))


@changes.register
def of_growth(node: ast.AugAssign) -> Iterator[ast.stmt]:
    yield ast.Assign([node.target], node.value)
    yield ast.AugAssign(node.target, OPERATORS[type(node.op)](), node.value)
    yield ast.Pass()


@changes.register
def of_match(node: ast.Match) -> Iterator[ast.Match]:
    for case, rest in zip(node.cases, without_each(node.cases), strict=True):
        if not is_for_types(case.body[0]):
            yield ast.Match(node.subject, rest)


@changes.register
def of_try(node: ast.Try) -> Iterator[ast.Try]:
    if node.finalbody:
        yield with_field(node, "finalbody", [ast.Pass()])


@changes.register
def of_function(node: ast.FunctionDef) -> Iterator[ast.FunctionDef]:
    for rest in without_each(node.decorator_list):
        yield with_field(node, "decorator_list", rest)


@changes.register(ast.Expr)
@changes.register(ast.Raise)
@changes.register(ast.Assert)
@changes.register(ast.Break)
@changes.register(ast.Continue)
def of_what_can_be_left_out(node: ast.stmt) -> Iterator[ast.Pass]:
    yield ast.Pass()


def with_field(node: Node, name: str, value: object) -> Node:
    return type(node)(**{**dict(ast.iter_fields(node)), name: value})


def is_none(node: ast.AST) -> bool:
    return isinstance(node, ast.Constant) and node.value is None


def without_each(items: list[Any]) -> list[list[Any]]:
    return [items[:i] + items[i + 1 :] for i in range(len(items))]


def mutants(path: Path) -> Iterator[Mutant]:
    """All mutants of a module, one at a time."""
    text = path.read_text()
    tree, lines = ast.parse(text), text.splitlines()
    for holder, key, node in list(slots(tree)):
        for other in changes(node):
            holder[key] = ast.fix_missing_locations(ast.copy_location(other, node))
            try:
                code = compile(tree, str(path.resolve()), "exec")
            except SyntaxError:
                continue  # No program, so no mutant: a class's default before a field that has none, say.
            finally:
                holder[key] = node
            line: int = node.lineno
            yield Mutant(path, line, lines[line - 1].strip(), difference(node, other), code)


def difference(before: ast.AST, after: ast.AST) -> str:
    """Where two nodes begin to differ as source, each on one line."""
    texts = [" ".join(ast.unparse(node).split()) for node in (before, after)]
    same = len(list(takewhile(lambda pair: pair[0] == pair[1], zip(*texts, strict=False))))
    start = max(0, same - SHOWN_CHARS // 3)
    return "  ->  ".join(text[start : start + SHOWN_CHARS] for text in texts)


def fate(mutant: Mutant | None, stages: list[list[str]]) -> str:
    """What becomes of a mutant (None: of the code as it is): killed by a test, stopped, or survived."""
    for tests in stages:
        child = os.fork()
        if child == 0:
            answer = NOT_JUDGED
            try:
                answer = judge(mutant, tests)
            finally:
                os._exit(answer)  # Whatever happens: the loop over the mutants is the parent's.
        answer = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        if answer == NOT_JUDGED:
            sys.exit(f"mutate: these tests did not run, or do not import what was changed: {tests}")
        if answer != pytest.ExitCode.OK:
            return "stopped" if answer < 0 else "killed"
    return "survived"


def judge(mutant: Mutant | None, tests: list[str]) -> int:
    """Run tests on the mutant, quietly; pytest's answer."""
    # Nobody catches these signals: they end the process.
    signal.setitimer(signal.ITIMER_PROF, WORK_LIMIT_S)
    signal.setitimer(signal.ITIMER_REAL, WAIT_LIMIT_S)
    if sys.platform == "linux":  # macOS knows the limit and refuses to set it.
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES_MAX, MEMORY_BYTES_MAX))
    quiet = os.open(os.devnull, os.O_RDWR)
    for stream in (1, 2):
        os.dup2(quiet, stream)
    loaded = mutant is None

    def get_code(self: importlib.machinery.SourceFileLoader, name: str) -> Any:
        nonlocal loaded
        if mutant is None or Path(self.path) != mutant.path.resolve():
            return read_code(self, name)
        loaded = True
        return mutant.code

    read_code: Callable[..., Any] = importlib.machinery.SourceFileLoader.get_code
    importlib.machinery.SourceFileLoader.get_code = get_code  # type: ignore[method-assign]
    answer = int(pytest.main([*PYTEST, *tests]))
    return answer if loaded else NOT_JUDGED


def preload() -> None:
    """Load all that ulak imports, and forget ulak itself, so that each fork loads only that anew."""
    sys.path.insert(0, str(Path("src").resolve()))
    import ulak.testing  # noqa: F401

    for name in [name for name in sys.modules if name.split(".")[0] == "ulak"]:
        del sys.modules[name]
    gc.freeze()


def tests_of(module: str) -> list[list[str]]:
    """The tests that judge a module: first its own, then all that use core."""
    own = sorted(map(str, Path("tests/core").glob(f"{OWN_TESTS[module]}.py")))
    every = sorted([*Path("tests/core").glob("test_*.py"), *Path("tests/contract").glob("test_storage_*.py")])
    return [own, [str(path) for path in every if "ulak.core" in path.read_text()]]


def run(module: str) -> Counter[str]:
    """Judge all mutants of a module, telling each that survives; how many were killed, and how many not."""
    stages = tests_of(module)
    if fate(None, stages) != "survived":
        sys.exit(f"mutate: the tests of {module} fail before anything is changed")
    start, counted = time.monotonic(), Counter(NONE)
    for mutant in mutants(CORE / f"{module}.py"):
        answer = fate(mutant, stages)
        reason = EQUIVALENT.get((mutant.source, mutant.change))
        if answer == "survived" and reason is not None:
            answer = "equivalent"
        counted[answer] += 1
        if answer != "killed":
            place = f"{mutant.path}:{mutant.line}"
            print(f"{answer}: {place}: {mutant.change}{f' ({reason})' if reason else ''}", flush=True)
    print(f"{module}: {told(counted)}, {time.monotonic() - start:.0f} s", flush=True)
    return counted


def told(counted: Counter[str]) -> str:
    return f"{counted.total()} mutants, " + ", ".join(f"{n} {answer}" for answer, n in counted.items())


def main(*modules: str) -> int:
    if not OWN_TESTS.keys() >= set(modules):
        sys.exit(f"mutate: the modules of core are {', '.join(OWN_TESTS)}")
    # The same examples in each run; and no plugin that is not needed, which would be loaded for each mutant.
    os.environ |= {"CI": "1", "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    preload()
    counted = Counter(NONE)
    for module in modules or sorted(OWN_TESTS):
        counted.update(run(module))
    # Those that change nothing anybody can see are not left out: the score is of all.
    score = 100 * (counted["killed"] + counted["stopped"]) / counted.total()
    print(f"{told(counted)}: {score:.1f} % killed (needs {SCORE_MIN:g} %)")
    return 0 if score >= SCORE_MIN else 1


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
