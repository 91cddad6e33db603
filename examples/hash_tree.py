"""Print the SHA-256 of every regular file under a directory, in the format of `sha256sum`.

    python examples/hash_tree.py PATH

The lines are those of `cd PATH && find . -type f -exec sha256sum {} +`, in the order in which they are ready.

What a queue adds to a loop over the files, each of them a job:
- bounded: the walk waits for room when it is ahead of the workers, so memory stays flat for any tree;
- prioritised: the largest file in the queue goes first, so that none is left to run alone at the end;
- retried: what may pass (EIO, EMFILE) is tried again after a growing pause, while other files go on;
- dead-lettered: what cannot be read ends nothing but its own job, which keeps its path and its error.

Exit status: 0 all was read, 1 something was not (stderr says what and why), 2 wrong usage, 130 Ctrl-C.
"""

import argparse
import hashlib
import os
import signal
import stat
import sys
import threading
from collections.abc import Iterator
from errno import EAGAIN, EBUSY, EINTR, EIO, EMFILE, ENFILE, ENOMEM, ESTALE, ETIMEDOUT, errorcode

from ulak import Backoff, Cancel, Context, Queue, Reject, Retry

CHUNK_BYTES = 1024 * 1024
# The file may have been replaced since the walk saw it: a link is refused, and a pipe is opened without
# waiting for its other end, which might never come.
OPEN_FLAGS = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK
# Trying again may help with these; with all others (EACCES, ENOENT, ELOOP) it only takes time.
TRANSIENT = {EAGAIN, EBUSY, EINTR, EIO, EMFILE, ENFILE, ENOMEM, ESTALE, ETIMEDOUT}
output = threading.Lock()


def hash_file(path: bytes, job: Context) -> None:
    """The handler of a job: read one file and print its line. What it raises settles the job."""
    try:
        digest = digest_of(path, job)
    except OSError as error:
        if error.errno in TRANSIENT:
            raise Retry(reason=explain(error)) from error  # after the queue's backoff
        raise Reject(explain(error)) from error  # dead at once
    # A job may run more than once, so its effect comes last: nothing that can still fail repeats it.
    print_line(digest, path)


def digest_of(path: bytes, job: Context) -> bytes:
    """The SHA-256 of a regular file, in hexadecimal, holding one chunk of it at a time."""
    fd = os.open(path, OPEN_FLAGS)
    try:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            raise Reject("not a regular file any more")
        digest = hashlib.sha256()
        while chunk := os.read(fd, CHUNK_BYTES):
            if job.cancelled:  # the pool has stopped and handed this job back
                raise Cancel("its lease is lost")
            digest.update(chunk)
    finally:
        os.close(fd)
    return digest.hexdigest().encode()


def print_line(digest: bytes, path: bytes) -> None:
    """Write a line as sha256sum does: a name that would break it is escaped, and the line then says so."""
    name = path.replace(b"\\", rb"\\").replace(b"\n", rb"\n").replace(b"\r", rb"\r")
    line = (b"\\" if name != path else b"") + digest + b"  " + name + b"\n"
    # Past sys.stdout, whose buffer no worker may hold when the interpreter ends; the lock keeps lines whole.
    with output:
        while line:
            line = line[os.write(1, line) :]


def regular_files(unlisted: list[bytes]) -> Iterator[tuple[bytes, int]]:
    """Each regular file below the current directory, with its size. Links are not followed.

    Names are bytes, since a file system promises nothing about their encoding.
    unlisted: gets the directories that cannot be listed; the walk goes on with the others.
    """
    pending = [b"."]
    while pending:
        directory = pending.pop()
        try:
            with os.scandir(directory) as entries:
                for entry in entries:
                    if entry.is_dir(follow_symlinks=False):
                        pending.append(entry.path)
                    elif entry.is_file(follow_symlinks=False):
                        yield entry.path, size_of(entry)
        except OSError as error:
            unlisted.append(directory)
            complain(directory, explain(error))


def size_of(entry: os.DirEntry[bytes]) -> int:
    """The size of a file, or 0 if it cannot be told: its job will meet the reason, and keep it."""
    try:
        return entry.stat(follow_symlinks=False).st_size
    except OSError:
        return 0


def explain(error: OSError) -> str:
    """Name, number and text of what the system answered."""
    return f"{errorcode.get(error.errno or 0, 'error')} ({error.errno}): {error.strerror}"


def complain(path: bytes, text: str) -> None:
    """Say on stderr what became of a path; quoted, since a name may hold newlines and terminal codes."""
    print(f"hash_tree: {os.fsdecode(path)!r}: {text}", file=sys.stderr)


def hash_tree() -> bool:
    """Hash all files below the current directory; whether all of it could be read."""
    unlisted: list[bytes] = []
    with Queue("memory://", capacity=1000, max_attempts=4, backoff=Backoff(base=0.05, cap=0.5)) as q:
        with q.workers(hash_file, count=4, grace=0.5) as pool:
            with q.producer():  # while one is registered, an empty queue is not the end
                for path, size in regular_files(unlisted):
                    q.enqueue(path, priority=size)  # waits here while the queue is full
            pool.drain()
        for job in q.jobs("dead", limit=100_000):  # as many as a queue keeps, unless told otherwise
            last = job.history[-1]
            complain(job.payload, f"{last.error.text if last.error else last.cause} (try {job.attempt})")
        counts = q.counts()
    if forgotten := counts.totals.dead_lettered - counts.dead:
        print(f"hash_tree: {forgotten:,} more, whose names are forgotten", file=sys.stderr)
    return not (unlisted or counts.totals.dead_lettered)


def main() -> int:
    """Run, and say by the exit status how it went."""
    parser = argparse.ArgumentParser(description="Print the SHA-256 of every regular file under PATH.")
    parser.add_argument("path", metavar="PATH", help="a directory")
    path = parser.parse_args().path
    try:
        os.chdir(path)
    except OSError as error:
        parser.error(f"{path!r}: {explain(error)}")
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # `hash_tree.py PATH | head` ends with head
    try:
        return 0 if hash_tree() else 1
    except KeyboardInterrupt:
        print("hash_tree: interrupted", file=sys.stderr)
        return 130


if __name__ == "__main__":
    sys.exit(main())
