"""Where a database file may live, and what is said where it may not."""

from __future__ import annotations

import logging
import os
import shutil
import stat
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from ulak.errors import ConfigError, StorageUnavailable
from ulak.storage.sqlite import place
from ulak.storage.sqlite.place import check_place, create_private, linux_mounts, mac_mounts, network_kind

_MOUNTINFO = r"""22 27 0:21 / /proc rw,relatime - proc proc rw
40 27 0:50 / /mnt/share rw,relatime shared:7 - nfs4 nas:/export rw,vers=4.2
41 40 0:51 / /mnt/share/scratch rw,relatime shared:8 master:1 - xfs /dev/vdb rw
42 27 0:52 / /mnt/win\040dows rw - cifs //nas/c rw
43 27 0:53 / /srv rw - ext4 /dev/vdc rw
44 27 0:54 / /srv rw - fuse.sshfs me@there:/ rw
45 27 0:55 / /local rw - 9p host rw
46 27 0:56 / /local rw - tmpfs tmpfs rw
27 1 254:0 / / rw,relatime - ext4 /dev/vda rw,discard
what is no line of it
"""

_MAC = """/dev/disk3s1s1 on / (apfs, sealed, local, read-only, journaled)
devfs on /dev (devfs, local, nobrowse)
/dev/disk3s5 on /System/Volumes/Data (apfs, local, journaled, nobrowse)
//me@nas/home on /Volumes/home (smbfs, nodev, nosuid, mounted by me)
nas:/a (b) on /Volumes/with (round) on brackets (nfs)
nas:/b on /Volumes/a on /b (nfs)
map auto_home on /System/Volumes/Data/home (autofs, automounted, nobrowse)
"""


@pytest.mark.parametrize(
    ("directory", "kind"),
    [
        ("/home/me", None),
        ("/mnt", None),
        ("/mnt/share", "nfs4"),
        ("/mnt/share/deep/down", "nfs4"),
        ("/mnt/sharewood", None),
        ("/mnt/share/scratch/jobs", None),
        ("/mnt/win dows/jobs", "cifs"),
        ("/srv/jobs", "fuse.sshfs"),
        ("/local/jobs", None),
    ],
)
def test_the_longest_mount_point_and_of_equal_ones_the_last_holds_a_directory(directory, kind):
    assert network_kind(Path(directory), linux_mounts(_MOUNTINFO)) == kind


@pytest.mark.parametrize(
    ("directory", "kind"),
    [
        ("/Users/me", None),
        ("/System/Volumes/Data/jobs", None),
        ("/Volumes/home/jobs", "smbfs"),
        ("/Volumes/with (round) on brackets/x", "nfs"),
        ("/Volumes/a on /b/x", "nfs"),
        ("/Volumes/homes", None),
    ],
)
def test_what_mount_prints_on_macos_is_understood(directory, kind):
    assert network_kind(Path(directory), mac_mounts(_MAC)) == kind


@pytest.mark.parametrize(
    "kind",
    [
        "nfs",
        "nfs4",
        "cifs",
        "smb3",
        "smbfs",
        "9p",
        "fuse.sshfs",
        "afs",
        "ceph",
        "glusterfs",
        "fuse.glusterfs",
        "lustre",
    ],
)
def test_a_network_file_system_is_refused_at_open(tmp_path, monkeypatch, kind):
    table = tmp_path / "mountinfo"
    table.write_text(f"1 0 254:0 / / rw - ext4 /dev/vda rw\n2 1 0:5 / {tmp_path} rw - {kind} there rw\n")
    monkeypatch.setattr(place, "_MOUNTINFO", table)
    monkeypatch.setattr(place, "_mount_output", lambda: f"there on {tmp_path} ({kind}, nodev)\n")
    with pytest.raises(
        ConfigError, match=f"is on a network file system \\({kind}\\).*put it on a local disk"
    ):
        check_place(tmp_path / "jobs.db")
    assert list(tmp_path.iterdir()) == [table]


def test_a_link_to_a_network_file_system_is_refused_as_what_it_points_to(tmp_path, monkeypatch):
    (tmp_path / "far").mkdir()
    (tmp_path / "near").symlink_to(tmp_path / "far")
    table = tmp_path / "mountinfo"
    table.write_text(f"1 0 254:0 / / rw - ext4 /dev/vda rw\n2 1 0:5 / {tmp_path}/far rw - nfs there rw\n")
    monkeypatch.setattr(place, "_MOUNTINFO", table)
    monkeypatch.setattr(place, "_mount_output", lambda: f"there on {tmp_path}/far (nfs)\n")
    with pytest.raises(ConfigError, match="network file system"):
        check_place(tmp_path / "near" / "jobs.db")


def test_a_machine_without_a_mount_table_is_not_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(place, "_MOUNTINFO", tmp_path / "absent")
    monkeypatch.setattr(place, "_mount_output", lambda: "")
    assert check_place(tmp_path / "jobs.db") == (tmp_path / "jobs.db").resolve()


def test_a_good_place_is_accepted_with_and_without_the_file(tmp_path, caplog):
    path = tmp_path / "jobs.db"
    assert check_place(path) == path.resolve()
    assert not path.exists()
    create_private(path)
    assert check_place(path) == path.resolve()
    assert caplog.records == []


def test_all_names_of_one_file_lead_to_one_place(tmp_path, monkeypatch):
    path = tmp_path / "jobs.db"
    path.touch()
    (tmp_path / "link.db").symlink_to("jobs.db")
    (tmp_path / "dir").symlink_to(".")
    monkeypatch.chdir(tmp_path)
    for name in (
        path,
        tmp_path / "link.db",
        tmp_path / "dir" / "jobs.db",
        Path("jobs.db"),
        Path("./dir/link.db"),
    ):
        assert check_place(name) == path.resolve()


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("absent/jobs.db", r'the directory of ".*absent/jobs.db" does not exist; create it'),
        ("file/jobs.db", r'the directory of ".*" does not exist'),
        ("directory", r'".*directory" is a directory; name a database file'),
        ("loop", r'".*loop" is a symbolic link to nowhere'),
        ("loop/jobs.db", r'the directory of ".*" does not exist'),
        ("nowhere", r'".*nowhere" is a symbolic link to nowhere'),
        ("pipe", r'".*pipe" is not a regular file'),
        ("nul\0byte", r"cannot be a file's name"),
    ],
)
def test_what_cannot_be_a_database_file_is_refused_in_one_sentence(tmp_path, name, says):
    (tmp_path / "file").touch()
    (tmp_path / "directory").mkdir()
    (tmp_path / "loop").symlink_to("loop")
    (tmp_path / "nowhere").symlink_to("absent.db")
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(ConfigError, match=says) as raised:
        check_place(tmp_path / name)
    assert "\n" not in str(raised.value)
    assert not (tmp_path / "absent.db").exists()


def test_a_name_that_no_file_system_takes_is_unavailable(tmp_path):
    with pytest.raises(StorageUnavailable, match="cannot look at"):
        check_place(tmp_path / ("x" * 5_000))


_AS_ANOTHER = """
import os, sys
from pathlib import Path
from ulak.errors import StorageUnavailable
from ulak.storage.sqlite.place import check_place, create_private
if os.getuid() == 0:
    os.setgroups([])
    os.setgid(65534)
    os.setuid(65534)
for call in (check_place, create_private):
    try:
        call(Path(sys.argv[1]))
        print("fine")
    except StorageUnavailable as error:
        print(error)
"""


@pytest.fixture
def open_directory():
    """A directory that a user without rights can reach, as `tmp_path` is not."""
    directory = Path(tempfile.mkdtemp(prefix="ulak-place-"))
    directory.chmod(0o755)
    yield directory
    directory.chmod(0o755)
    shutil.rmtree(directory)


def _said_to_another_user(path: Path) -> list[str]:
    command = [sys.executable, "-c", _AS_ANOTHER, str(path)]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()


def test_a_directory_one_may_not_write_is_unavailable(open_directory):
    open_directory.chmod(0o555)
    checked, created = _said_to_another_user(open_directory / "jobs.db")
    assert checked.startswith(f'this user may not write in "{open_directory.resolve()}"')
    assert created.startswith(f'cannot create "{open_directory}/jobs.db": Permission denied')


def test_a_file_one_may_not_write_is_unavailable(open_directory):
    path = open_directory / "jobs.db"
    path.touch()
    path.chmod(0o444)
    open_directory.chmod(0o1777)
    checked, created = _said_to_another_user(path)
    assert checked.startswith(f'this user may not write "{path.resolve()}"')
    assert created == "fine"


@pytest.mark.parametrize(("mode", "warnings"), [(0o700, 0), (0o775, 0), (0o1777, 0), (0o777, 1)])
def test_a_directory_that_anybody_may_change_is_warned_of(tmp_path, caplog, mode, warnings):
    directory = tmp_path / "shared"
    directory.mkdir()
    directory.chmod(mode)
    with caplog.at_level(logging.WARNING, "ulak"):
        check_place(directory / "jobs.db")
    assert [record.getMessage().startswith("anybody") for record in caplog.records] == [True] * warnings


def test_an_unsupported_platform_is_told_what_it_can_use(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "platform", "win32")
    with pytest.raises(ConfigError, match="needs Linux or macOS, this is win32; use memory://"):
        check_place(tmp_path / "jobs.db")


def test_a_file_is_created_private_whatever_the_umask(tmp_path):
    path = tmp_path / "jobs.db"
    before = os.umask(0)
    try:
        create_private(path)
    finally:
        os.umask(before)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_a_file_that_is_there_is_left_alone(tmp_path):
    path = tmp_path / "jobs.db"
    path.write_bytes(b"kept")
    path.chmod(0o640)
    create_private(path)
    assert path.read_bytes() == b"kept"
    assert stat.S_IMODE(path.stat().st_mode) == 0o640


def test_creating_does_not_follow_a_link(tmp_path):
    (tmp_path / "jobs.db").symlink_to("victim")
    create_private(tmp_path / "jobs.db")
    assert not (tmp_path / "victim").exists()
