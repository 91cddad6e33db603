"""Everything the two systems tested, or should have, has a test here."""

import importlib
import subprocess
import sys

import pytest

from tests.contract import parity


@pytest.fixture(scope="module")
def collected():
    """What pytest finds in each parity file, without running it."""
    command = [sys.executable, "-m", "pytest", "--collect-only", "-q", "-p", "no:cacheprovider"]
    paths = [f"{name.replace('.', '/')}.py" for name in parity.FILES]
    answer = subprocess.run([*command, *paths], capture_output=True, text=True, check=False, timeout=60)
    assert answer.returncode == 0, answer.stdout + answer.stderr
    ids = [line for line in answer.stdout.splitlines() if "::" in line]
    return {tuple(line.partition("[")[0].removesuffix(".py").split("::")) for line in ids}


def test_every_test_of_the_seed_has_a_mirror():
    assert set(parity.MIRRORS) == set(parity.SEED_TESTS)
    assert len(parity.SEED_TESTS) == len(set(parity.SEED_TESTS)) == 16 + 5 + 4


def test_every_gap_and_defect_of_the_seed_has_an_answer():
    assert set(parity.ANSWERS) == {*parity.UNTESTED, *parity.DEFECTS}


@pytest.mark.parametrize("name", [*parity.MIRRORS, *parity.ANSWERS])
def test_the_named_test_exists_and_is_collected(name, collected):
    module, function = {**parity.MIRRORS, **parity.ANSWERS}[name]
    assert (module.replace(".", "/"), function) in collected
    assert callable(getattr(importlib.import_module(module), function))


@pytest.mark.parametrize("rule", parity.NUMBERED)
def test_every_numbered_rule_has_a_test(rule, collected):
    assert any(function.startswith(f"test_{rule}_") for _, function in collected)
