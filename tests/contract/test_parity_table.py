"""Everything the two systems tested, or should have, has a test here."""

import subprocess
import sys

import pytest

from tests.contract import parity


@pytest.fixture(scope="module")
def collected(pytestconfig):
    """What pytest finds in the parity files without running it, as (module, function)."""
    command = [sys.executable, "-m", "pytest", "--collect-only", "-q", "-p", "no:cacheprovider"]
    paths = [f"{name.replace('.', '/')}.py" for name in parity.FILES]
    answer = subprocess.run(
        [*command, *paths],
        cwd=pytestconfig.rootpath,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert answer.returncode == 0, answer.stdout + answer.stderr
    ids = [line.partition("[")[0].split("::") for line in answer.stdout.splitlines() if "::" in line]
    return {(path.removesuffix(".py").replace("/", "."), function) for path, function in ids}


def test_every_test_of_the_first_system_has_a_mirror(collected):
    assert len(set(parity.SEED_TESTS)) == len(parity.SEED_TESTS) == 16 + 5 + 4
    assert set(parity.MIRRORS) == set(parity.SEED_TESTS)
    assert set(parity.MIRRORS.values()) - collected == set()


def test_every_gap_and_defect_of_the_first_system_has_an_answer(collected):
    assert set(parity.ANSWERS) == {*parity.UNTESTED, *parity.DEFECTS}
    assert set(parity.ANSWERS.values()) - collected == set()


def test_every_numbered_rule_has_a_test(collected):
    functions = {function for _, function in collected}
    tested = {rule for rule in parity.NUMBERED if any(name.startswith(f"test_{rule}_") for name in functions)}
    assert tested == set(parity.NUMBERED)


def test_a_test_that_is_not_there_would_be_missed(collected):
    # Whatever is collected is named by the module and function that hold it.
    assert {module for module, _ in collected} == set(parity.FILES)
    assert (parity.LEASE, "test_no_such_test") not in collected
