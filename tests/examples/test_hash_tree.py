"""examples/hash_tree.py: equal to sha256sum where all can be read, and an honest end where it cannot."""

import importlib.util
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import ulak
from ulak import Backoff, Queue

EXAMPLE = Path(__file__).parents[2] / "examples" / "hash_tree.py"
NOBODY = 65534
ENOUGH_S = 60

ODD_NAMES = [
    b"plain",
    b" leading and trailing ",
    b"-rf",
    b"--help",
    b"*",
    b"tab\there",
    b"new\nline",
    b"back\\slash",
    b"\\n",
    b"\\",
    b"ends in newline\n",
    b"\xff\xfe not UTF-8",
    "grüße 你好".encode(),
    b"\x1b[31mred",
    b"x" * 255,
]

# What a full pipe, the workers and the queue hold together is less than this many lines with names this long.
BLOCKING_FILES = 1400
LONG = "n" * 200


def environment():
    return os.environ | {"PYTHONPATH": str(Path(ulak.__file__).parents[1])}


def start(path, **options):
    command = [sys.executable, EXAMPLE, path]
    pipe = subprocess.PIPE
    return subprocess.Popen(command, stdout=pipe, stderr=pipe, env=environment(), **options)


def run(*paths):
    command = [sys.executable, EXAMPLE, *paths]
    return subprocess.run(command, capture_output=True, env=environment(), timeout=ENOUGH_S, check=False)


# The imports come first: nobody may be unable to read them, or to reach the tree by its whole path.
AS_NOBODY = f"""
import importlib.util, os, sys
spec = importlib.util.spec_from_file_location("hash_tree", sys.argv[1])
example = importlib.util.module_from_spec(spec)
spec.loader.exec_module(example)
os.chdir(sys.argv[2])
if os.getuid() == 0:
    os.setgroups([])
    os.setgid({NOBODY})
    os.setuid({NOBODY})
sys.argv[1:] = ["."]
sys.exit(example.main())
"""


def run_unprivileged(path):
    command = [sys.executable, "-c", AS_NOBODY, EXAMPLE, path]
    return subprocess.run(command, capture_output=True, env=environment(), timeout=ENOUGH_S, check=False)


def sha256sum(path):
    find = ["find", ".", "-type", "f", "-exec", "sha256sum", "{}", "+"]
    return subprocess.run(find, cwd=path, capture_output=True, check=True).stdout


def lines(output):
    return sorted(output.splitlines())


def put(path, content=b""):
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "wb") as file:
        file.write(content)


@pytest.fixture
def tree(tmp_path):
    """A tree of files with odd names, two levels deep, in a directory that anybody may read."""
    top = tmp_path / "tree"
    top.mkdir(mode=0o755)
    for number, name in enumerate(ODD_NAMES):
        put(os.path.join(os.fsencode(top), name), b"a" * number)
        put(os.path.join(os.fsencode(top), b"deep", name, name), b"b" * number)
    put(os.fsencode(top / "empty"))
    put(os.fsencode(top / "several chunks"), os.urandom(3 * 1024 * 1024 + 1))
    return top


@pytest.fixture
def two_big_directories(tmp_path):
    """Two directories, each with more files than fit into the pipe and the queue when nobody reads."""
    top = tmp_path / "big"
    for number in range(BLOCKING_FILES):
        put(os.fsencode(top / "one" / f"{number}-{LONG}"))
    shutil.copytree(top / "one", top / "two")
    return top


@pytest.fixture(scope="module")
def example():
    spec = importlib.util.spec_from_file_location("hash_tree", EXAMPLE)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def dead_letters_of(example, path, max_attempts=3):
    """What becomes of one path whose file is no longer what the walk saw."""
    with Queue(max_attempts=max_attempts, backoff=Backoff(base=0.001, cap=0.002)) as q:
        with q.workers(example.hash_file, count=1) as pool:
            with q.producer():
                q.enqueue(os.fsencode(path))
            pool.drain()
        return [[attempt.error.text for attempt in job.history] for job in q.jobs("dead")]


def test_prints_what_sha256sum_prints_for_odd_names_and_contents(tree):
    """Every kind of name that could break a line, a quotation or an encoding."""
    result = run(tree)

    assert (0, b"") == (result.returncode, result.stderr)
    assert lines(sha256sum(tree)) == lines(result.stdout)


def test_an_empty_directory_ends_in_success(tmp_path):
    """Nothing to do, so nothing to wait for."""
    result = run(tmp_path)

    assert (0, b"", b"") == (result.returncode, result.stdout, result.stderr)


def test_what_cannot_be_read_is_listed_with_errno_and_path_and_the_rest_is_hashed(tree):
    """An unprivileged user meets a dangling link, a pipe, a file and a directory of mode 000."""
    readable = lines(sha256sum(tree))
    (tree / "dangling").symlink_to("nowhere")
    (tree / "link to a file").symlink_to("empty")
    (tree / "link to a directory").symlink_to(".")
    os.mkfifo(tree / "pipe")
    put(os.fsencode(tree / "locked\nfile"), b"secret")
    put(os.fsencode(tree / "locked directory" / "inside"), b"secret")
    (tree / "locked\nfile").chmod(0)
    (tree / "locked directory").chmod(0)
    try:
        result = run_unprivileged(tree)
    finally:
        (tree / "locked directory").chmod(0o755)

    assert 1 == result.returncode
    assert readable == lines(result.stdout)
    assert [
        b"hash_tree: './locked directory': EACCES (13): Permission denied",
        b"hash_tree: './locked\\nfile': EACCES (13): Permission denied (try 1)",
    ] == lines(result.stderr)


def test_files_and_directories_that_vanish_while_it_runs_are_listed(two_big_directories):
    """Nobody reads its output, so it stands in its first directory, with the queue full, when both go."""
    process = start(two_big_directories)
    first_line = process.stdout.readline()
    shutil.rmtree(two_big_directories / "one")
    shutil.rmtree(two_big_directories / "two")
    rest, errors = process.communicate(timeout=ENOUGH_S)

    first, second = ("one", "two") if b"  ./one/" in first_line else ("two", "one")
    printed = lines(first_line + rest)
    unread = lines(errors)
    assert 1 == process.returncode
    assert f"hash_tree: './{second}': ENOENT (2): No such file or directory".encode() in unread
    unread.remove(f"hash_tree: './{second}': ENOENT (2): No such file or directory".encode())
    assert unread
    assert all(line.startswith(f"hash_tree: './{first}/".encode()) for line in unread)
    assert all(line.endswith(b"': ENOENT (2): No such file or directory (try 1)") for line in unread)
    names = [line.split(b"/")[2] for line in printed] + [
        line.split(b"/")[2].split(b"'")[0] for line in unread
    ]
    assert len(set(names)) == len(names) <= BLOCKING_FILES


@pytest.mark.parametrize(
    ("plant", "error"),
    [
        (os.mkfifo, "not a regular file any more"),
        (lambda path: os.symlink("/dev/null", path), "ELOOP"),
        (os.mkdir, "not a regular file any more"),
        (lambda path: None, "ENOENT"),
    ],
    ids=["pipe", "link", "directory", "nothing"],
)
def test_a_file_replaced_since_the_walk_is_given_up_at_once(example, tmp_path, plant, error):
    """The handler looks again, without waiting for the other end of a pipe."""
    plant(tmp_path / "changed")

    ((text,),) = dead_letters_of(example, tmp_path / "changed")

    assert text.startswith(error)


@pytest.mark.skipif(not os.path.exists("/proc/self/mem"), reason="no file here whose read fails with EIO")
def test_an_error_that_may_pass_is_tried_again_before_it_is_given_up(example):
    """Nothing is mapped at the start of a process's memory, so its first byte cannot be read."""
    texts = dead_letters_of(example, "/proc/self/mem", max_attempts=3)

    assert [["EIO (5): Input/output error"] * 3] == texts


def test_ctrl_c_ends_it_with_130(two_big_directories):
    """It is at work, and its output stuck in a pipe that nobody reads."""
    process = start(two_big_directories)
    process.stdout.readline()
    process.send_signal(signal.SIGINT)
    process.wait(timeout=ENOUGH_S)
    _, errors = process.communicate()

    assert (130, b"hash_tree: interrupted\n") == (process.returncode, errors)


def test_it_ends_with_the_reader_of_its_output(two_big_directories):
    """As in `hash_tree.py PATH | head -1`."""
    process = start(two_big_directories)
    process.stdout.readline()
    process.stdout.close()
    errors = process.stderr.read()
    process.stderr.close()

    assert (-signal.SIGPIPE, b"") == (process.wait(timeout=ENOUGH_S), errors)


@pytest.mark.parametrize("paths", [[], ["a", "b"], ["/nonexistent"], [EXAMPLE]])
def test_wrong_usage_ends_with_2_and_says_why(paths):
    """No path, two, one that does not exist, one that is no directory."""
    result = run(*paths)

    assert (2, b"") == (result.returncode, result.stdout)
    assert b"usage: hash_tree.py" in result.stderr
