"""examples/hash_tree.py: equal to sha256sum where all can be read, and an honest end where it cannot."""

from __future__ import annotations

import importlib.util
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import IO

import pytest

import ulak
from ulak import Backoff, Queue

EXAMPLE = Path(__file__).parents[2] / "examples" / "hash_tree.py"
ENVIRONMENT = os.environ | {"PYTHONPATH": str(Path(ulak.__file__).parents[1])}
ENOUGH_S = 30

ODD_NAMES = [
    b"plain",
    b" leading and trailing ",
    b"-rf",
    b"--help",
    b"*",
    b"tab\there",
    b"new\nline",
    b"ends in newline\n",
    b"back\\slash",
    b"\\n",
    b"\\",
    b"\xff\xfe not UTF-8",
    b"\x1b[31mred",
    b"x" * 255,
]

# More lines, with such long names, than a full pipe, the workers and the queue hold together.
BLOCKING_FILES = 1400
LONG_NAME = "n" * 200

# What is imported late is imported by the first run: it may be out of reach for nobody, as may be the tree
# by its whole path.
UNPRIVILEGED = """
import importlib.util, os, sys
_, example, empty, tree = sys.argv
spec = importlib.util.spec_from_file_location("hash_tree", example)
module = importlib.util.module_from_spec(spec)
spec.loader.exec_module(module)
sys.argv[1:] = [empty]
module.main()
os.chdir(tree)
if os.getuid() == 0:
    os.setgroups([])
    os.setgid(65534)
    os.setuid(65534)
sys.argv[1:] = ["."]
sys.exit(module.main())
"""


def run(*arguments: str | Path) -> subprocess.CompletedProcess[bytes]:
    command = [sys.executable, *arguments]
    return subprocess.run(command, capture_output=True, env=ENVIRONMENT, timeout=ENOUGH_S, check=False)


@contextmanager
def started(tree: Path) -> Iterator[tuple[subprocess.Popen[bytes], IO[bytes]]]:
    """The example at work on a tree, and its output; killed if it does not end by itself."""
    command = [sys.executable, str(EXAMPLE), str(tree)]
    pipe = subprocess.PIPE
    # Unbuffered: communicate() would not see what a readline() had left in a buffer.
    with subprocess.Popen(command, bufsize=0, stdout=pipe, stderr=pipe, env=ENVIRONMENT) as process:
        assert process.stdout is not None
        try:
            yield process, process.stdout
        finally:
            process.kill()


def sha256sum(tree: Path) -> bytes:
    find = ["find", ".", "-type", "f", "-exec", "sha256sum", "{}", "+"]
    return subprocess.run(find, cwd=tree, capture_output=True, check=True).stdout


def lines(output: bytes) -> list[bytes]:
    return sorted(output.splitlines())


def put(path: Path, content: bytes = b"") -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    top = tmp_path / "tree"
    for number, name in enumerate(map(os.fsdecode, ODD_NAMES)):
        put(top / name, b"a" * number)
        put(top / "deep" / name / name, b"b" * number)
    put(top / "empty")
    put(top / "several chunks", os.urandom(3 * 1024 * 1024 + 1))
    return top


@pytest.fixture
def two_big_directories(tmp_path: Path) -> Path:
    top = tmp_path / "big"
    for number in range(BLOCKING_FILES):
        put(top / "one" / f"{number}-{LONG_NAME}")
    shutil.copytree(top / "one", top / "two")
    return top


@pytest.fixture(scope="module")
def example() -> ModuleType:
    spec = importlib.util.spec_from_file_location("hash_tree", EXAMPLE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def errors_of(example: ModuleType, path: Path) -> list[str]:
    """The errors of the attempts at one path, which must end as a dead letter of at most three."""
    with Queue(max_attempts=3, backoff=Backoff(base=0.001, cap=0.002)) as q:
        with q.workers(example.hash_file, count=1) as pool:
            with q.producer():
                q.enqueue(os.fsencode(path))
            pool.drain()
        (dead,) = q.jobs("dead")
    return [attempt.error.text for attempt in dead.history if attempt.error]


def test_prints_what_sha256sum_prints_for_odd_names_and_contents(tree: Path) -> None:
    result = run(EXAMPLE, tree)

    assert (result.returncode, result.stderr) == (0, b"")
    assert lines(result.stdout) == lines(sha256sum(tree))


def test_an_empty_directory_ends_in_success(tmp_path: Path) -> None:
    result = run(EXAMPLE, tmp_path)

    assert (result.returncode, result.stdout, result.stderr) == (0, b"", b"")


def test_what_cannot_be_read_is_listed_with_its_errno_and_the_rest_is_hashed(tree: Path) -> None:
    # An unprivileged user meets links, which are no files, a pipe, and what it may not read.
    readable = lines(sha256sum(tree))
    (tree / "dangling").symlink_to("nowhere")
    (tree / "link to a file").symlink_to("empty")
    (tree / "link to a directory").symlink_to(".")
    os.mkfifo(tree / "pipe")
    put(tree / "locked\nfile", b"secret")
    put(tree / "locked directory" / "inside", b"secret")
    empty = tree.parent / "nothing"
    empty.mkdir()
    (tree / "locked\nfile").chmod(0)
    (tree / "locked directory").chmod(0)
    tree.chmod(0o755)
    try:
        result = run("-c", UNPRIVILEGED, EXAMPLE, empty, tree)
    finally:
        (tree / "locked directory").chmod(0o755)

    assert lines(result.stderr) == [
        b"hash_tree: './locked directory': EACCES (13): Permission denied",
        b"hash_tree: './locked\\nfile': EACCES (13): Permission denied (try 1)",
    ]
    assert lines(result.stdout) == readable
    assert result.returncode == 1


def test_files_and_directories_that_vanish_while_it_runs_are_listed(two_big_directories: Path) -> None:
    # Nobody reads its output, so it stands in its first directory, with the queue full, when both go.
    with started(two_big_directories) as (process, output):
        first_line = output.readline()
        shutil.rmtree(two_big_directories / "one")
        shutil.rmtree(two_big_directories / "two")
        rest, errors = process.communicate(timeout=ENOUGH_S)

    first, second = (b"one", b"two") if b"  ./one/" in first_line else (b"two", b"one")
    unread = lines(errors)
    unread.remove(b"hash_tree: './%b': ENOENT (2): No such file or directory" % second)
    assert unread
    assert all(line.startswith(b"hash_tree: './%b/" % first) for line in unread)
    assert all(line.endswith(b"': ENOENT (2): No such file or directory (try 1)") for line in unread)
    names = [line.split(b"/")[2] for line in lines(first_line + rest)]
    names += [line.split(b"/")[2].split(b"'")[0] for line in unread]
    assert len(set(names)) == len(names) <= BLOCKING_FILES
    assert process.returncode == 1


@pytest.mark.parametrize(
    ("plant", "error"),
    [
        (os.mkfifo, "not a regular file any more"),
        (Path.mkdir, "not a regular file any more"),
        (lambda path: path.symlink_to("/dev/null"), "ELOOP"),
        (lambda _path: None, "ENOENT"),
    ],
    ids=["pipe", "directory", "link", "nothing"],
)
def test_a_file_replaced_since_the_walk_is_given_up_at_once(
    example: ModuleType, tmp_path: Path, plant: Callable[[Path], None], error: str
) -> None:
    plant(tmp_path / "replaced")

    (text,) = errors_of(example, tmp_path / "replaced")

    assert text.startswith(error)


@pytest.mark.skipif(sys.platform != "linux", reason="needs /proc")
def test_an_error_that_may_pass_is_tried_again_before_it_is_given_up(example: ModuleType) -> None:
    # Nothing is mapped at the start of a process's memory, so the first byte of this file cannot be read.
    assert errors_of(example, Path("/proc/self/mem")) == ["EIO (5): Input/output error"] * 3


def test_ctrl_c_ends_it_with_130(two_big_directories: Path) -> None:
    # It is in the middle of its work, and its output will be stuck in a pipe that nobody reads.
    with started(two_big_directories) as (process, output):
        output.readline()
        process.send_signal(signal.SIGINT)
        process.wait(ENOUGH_S)
        _, errors = process.communicate()

    assert (process.returncode, errors) == (130, b"hash_tree: interrupted\n")


def test_it_ends_with_the_reader_of_its_output(two_big_directories: Path) -> None:
    # As in `hash_tree.py PATH | head -1`.
    with started(two_big_directories) as (process, output):
        output.readline()
        output.close()
        process.wait(ENOUGH_S)
        assert process.stderr is not None
        errors = process.stderr.read()

    assert (process.returncode, errors) == (-signal.SIGPIPE, b"")


@pytest.mark.parametrize("paths", [[], ["a", "b"], ["/nonexistent"], [EXAMPLE]])
def test_wrong_usage_ends_with_2_and_says_why(paths: list[str | Path]) -> None:
    # No path, two paths, one that does not exist, one that is no directory.
    result = run(EXAMPLE, *paths)

    assert (result.returncode, result.stdout) == (2, b"")
    assert b"usage: hash_tree.py" in result.stderr
