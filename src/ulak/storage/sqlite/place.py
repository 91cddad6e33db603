"""Whether a database file can live where it was asked to: said at open, not found out by a lost job."""

from __future__ import annotations

import errno
import logging
import os
import re
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from ulak.errors import ConfigError, StorageFull, StorageUnavailable

_MOUNTINFO = Path("/proc/self/mountinfo")
_MOUNT_TIMEOUT_S = 5.0
# File systems that machines share. On them locks and shared memory do not reach the other machine, or not
# always, so two processes may both believe they alone write.
_NETWORK = re.compile(
    r"""9p|acfs|afpfs|afs|auristorfs|cifs|coda|ftp|gfs2|gpfs|lustre|ncpfs|nfs[34]?|ocfs2|orangefs|prl_fs|pvfs2
    |smb[23]|smbfs|vboxsf|webdav|(fuse\.)?(beegfs|ceph|ceph-fuse|davfs|glusterfs)
    |fuse\.(curlftpfs|gcsfuse|goofys|juicefs|mfs|rclone|s3fs|smbnetfs|sshfs|vmhgfs-fuse)""",
    re.VERBOSE,
)
_ESCAPED = re.compile(r"\\([0-7]{3})")
_MAC_MOUNT = re.compile(r".+? on (?P<point>/.*) \((?P<kind>[^,)]+)[^)]*\)")

_log = logging.getLogger("ulak")


def check_place(path: Path) -> Path:
    """The real path of a database file that can live there; it need not exist yet.

    Raises ConfigError where it never can (a network file system, no such directory, no file's name, an
    unsupported platform), StorageUnavailable where this user may not write. Symbolic links are followed, so
    that all who open one file, by whatever name, find the same files beside it.
    """
    if sys.platform not in ("linux", "darwin"):
        raise ConfigError(
            f"sqlite:// needs Linux or macOS, this is {sys.platform}; use memory:// or postgresql:// here"
        )
    real = _real(path)
    kind = file_system_of(real.parent)
    if kind is not None:
        raise ConfigError(
            f'"{path}" is on a network file system ({kind}), where locks cannot be relied on; '
            "put it on a local disk, or use postgresql://"
        )
    _check_writable(real)
    mode = real.parent.stat().st_mode
    if mode & stat.S_IWOTH and not mode & stat.S_ISVTX:
        _log.warning('anybody on this machine may replace files in "%s"; run: chmod o-w', real.parent)
    return real


def _real(path: Path) -> Path:
    """The path with its links followed, if it is, or can become, a regular file in a directory."""
    try:
        # A link to nowhere is refused: where its target would be made was hardly meant.
        if path.is_symlink() and not path.exists():
            raise ConfigError(
                f'"{path}" is a symbolic link to nowhere; remove it, or create what it points to'
            )
        real = Path(os.path.realpath(path))
        has_directory = real.parent.is_dir()
        mode = _mode_of(real) if has_directory else None
    except ValueError as error:
        raise ConfigError(f"{str(path)!r} cannot be a file's name: {error}") from error
    except OSError as error:
        raise StorageUnavailable(f'cannot look at "{path}": {error.strerror}') from error
    if not has_directory:
        raise ConfigError(
            f'the directory of "{path}" does not exist; create it, or correct the path in the URL'
        )
    if mode is not None and not stat.S_ISREG(mode):
        what = "a directory" if stat.S_ISDIR(mode) else "not a regular file"
        raise ConfigError(f'"{path}" is {what}; name a database file in the URL')
    return real


def _mode_of(path: Path) -> int | None:
    """What kind of file it is; None if there is none."""
    try:
        return path.stat().st_mode
    except (FileNotFoundError, NotADirectoryError):
        return None


def _check_writable(real: Path) -> None:
    if not os.access(real.parent, os.W_OK | os.X_OK):
        raise StorageUnavailable(
            f'this user may not write in "{real.parent}"; the directory must be writable, not only the file'
        )
    if real.exists() and not os.access(real, os.R_OK | os.W_OK):
        raise StorageUnavailable(f'this user may not write "{real}"; change its owner or mode')


def create_private(path: Path) -> None:
    """Create the empty file, for this user's eyes only, unless there is one.

    Called before the file is opened in this process: closing a descriptor drops the process's locks on it.
    """
    try:
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    except FileExistsError:
        return
    except OSError as error:
        text = f'cannot create "{path}": {error.strerror}'
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise StorageFull(f"{text}; free some space") from error
        raise StorageUnavailable(text) from error
    os.close(fd)


def file_system_of(directory: Path) -> str | None:
    """The kind of the network file system that holds a directory, by its real path; None for a local one."""
    if sys.platform == "darwin":
        return network_kind(directory, mac_mounts(_mount_output()))
    try:
        text = _MOUNTINFO.read_text(encoding="utf-8", errors="surrogateescape")
    except OSError:
        # Without /proc it cannot be told; most of what has none is a container on a local disk.
        return None
    return network_kind(directory, linux_mounts(text))


def network_kind(directory: Path, mounts: Iterator[tuple[str, str]]) -> str | None:
    """The kind of the mount that holds the directory if it is a network's.

    mounts: mount point and kind of each, in the order they were mounted: a later one hides an earlier.
    """
    holding, depth = "", -1
    for point, kind in mounts:
        parts = len(Path(point).parts)
        if parts >= depth and directory.is_relative_to(point):
            holding, depth = kind, parts
    return holding if _NETWORK.fullmatch(holding) else None


def linux_mounts(text: str) -> Iterator[tuple[str, str]]:
    """Mount point and kind of each line of /proc/self/mountinfo; lines of another form are passed over."""
    for line in text.splitlines():
        before, separator, after = line.partition(" - ")
        fields, kinds = before.split(" "), after.split(" ")
        if separator and len(fields) > 4:
            yield _ESCAPED.sub(lambda found: chr(int(found[1], 8)), fields[4]), kinds[0]


def mac_mounts(text: str) -> Iterator[tuple[str, str]]:
    """Mount point and kind of each line that `mount` prints on macOS."""
    for line in text.splitlines():
        found = _MAC_MOUNT.fullmatch(line)
        if found:
            yield found["point"], found["kind"]


def _mount_output() -> str:
    try:
        done = subprocess.run(
            ["/sbin/mount"], capture_output=True, text=True, check=False, timeout=_MOUNT_TIMEOUT_S
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout
