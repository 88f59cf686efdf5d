"""The pytest plugin, in real runs of pytest with simulated devices."""

from __future__ import annotations

from collections.abc import Callable

import pytest

Session = Callable[..., pytest.RunResult]

COLLECTING = """
    import torch

    DEVICE = "cuda" if torch.cuda.is_available() else "cpu"

    def test_one():
        pass
"""
TESTS = """
    import pytest
    import torch

    def test_first():
        pass

    def test_waking():
        torch.ones(1).cuda()

    def test_after():
        torch.ones(1).cuda()
"""
FORBIDDING = """
    import threading
    import pytest
    import torch

    @pytest.fixture
    def gpu():
        return torch.ones(1).cuda()  # in a fixture

    @pytest.mark.no_cuda_init
    def test_marked():
        torch.cuda.is_available()  # marked

    @pytest.mark.no_cuda_init
    def test_marked_through_a_fixture(gpu):
        pass

    def test_fixture(forbid_cuda_init):
        torch.cuda.init()  # forbidden

    @pytest.mark.no_cuda_init
    def test_swallowed():
        try:
            torch.cuda.init()
        except Exception:
            pass

    @pytest.mark.no_cuda_init
    def test_unseen():
        torch.Generator(device="cuda")

    @pytest.mark.no_cuda_init(allow_queries=True)
    def test_asking():
        torch.cuda.device_count()

    @pytest.mark.no_cuda_init
    def test_clean(forbid_cuda_init):
        torch.ones(1)
"""


def _line(source: str, mark: str) -> int:
    return next(n for n, text in enumerate(source.strip("\n").splitlines(), 1) if mark in text)


def test_silent_unless_asked(pytester: pytest.Pytester, session: Session) -> None:
    """Without an option the run is as without the plugin: nothing printed, no warning, the guard not even imported."""
    pytester.makepyfile("import sys\ndef test_one():\n    assert 'cudaguard' not in sys.modules\n")
    result = session("-W", "error", simulate=None)
    result.assert_outcomes(passed=1)
    assert "CUDA" not in result.stdout.str()
    assert [line for line in result.outlines if "cudaguard" in line and not line.startswith("plugins:")] == []
    assert result.stderr.str() == ""


def test_collecting_a_file_is_named(pytester: pytest.Pytester, session: Session) -> None:
    """The header says that it is on and in which mode, the summary says which line of which file was collected when CUDA woke."""
    pytester.makepyfile(test_x=COLLECTING)
    result = session("--cudaguard")
    result.assert_outcomes(passed=1)
    line = _line(COLLECTING, "DEVICE")
    result.stdout.fnmatch_lines(["cudaguard: on, mode error, simulated devices", "*= cudaguard =*"])
    result.stdout.fnmatch_lines([f"CUDA was first initialised while collecting test_x.py:{line} (torch.cuda.is_available, queried)"])


def test_a_test_is_named_and_findings_are_listed(pytester: pytest.Pytester, session: Session) -> None:
    """`--cudaguard-mode` turns it on too; a child's finding that a test caught is in the summary."""
    pytester.makepyfile(test_y=TESTS)
    result = session("--cudaguard-mode", "warn")
    result.assert_outcomes(passed=3)
    result.stdout.fnmatch_lines(["cudaguard: on, mode warn*"])
    line = _line(TESTS, "torch.ones(1).cuda()")
    result.stdout.fnmatch_lines([f"CUDA was first initialised by test_y.py::test_waking, at test_y.py:{line} (torch.Tensor.cuda, initialised)"])


def test_a_conftest_file_is_named(pytester: pytest.Pytester, session: Session) -> None:
    """The guard is on before the first conftest file is read; the ini option turns it on."""
    pytester.makeini("[pytest]\ncudaguard_mode = record\n")
    pytester.makeconftest("import torch\ntorch.cuda.is_available()\n")
    pytester.makepyfile("def test_one():\n    pass\n")
    result = session()
    result.stdout.fnmatch_lines(["cudaguard: on, mode record*"])
    result.stdout.fnmatch_lines(["CUDA was first initialised before collection, at conftest.py:2 (torch.cuda.is_available, queried)"])


def test_a_wrong_mode_is_a_usage_error(pytester: pytest.Pytester, session: Session) -> None:
    """The error names the legal modes."""
    result = session("--cudaguard-mode", "loud")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["*mode 'loud' is not known; legal: off, record, warn, error, reroute, respawn*"])


def test_marker_and_fixture_fail_at_the_line(pytester: pytest.Pytester, session: Session) -> None:
    """With nothing else asked for: in the test, its fixtures, where the error is swallowed, and where C code did it."""
    pytester.makepyfile(test_z=FORBIDDING)
    result = session("--strict-markers", "-rfE")
    result.assert_outcomes(passed=2, failed=4, errors=1)
    for mark in ("# marked", "# in a fixture", "# forbidden"):
        result.stdout.fnmatch_lines([f"E *touched *test_z.py:{_line(FORBIDDING, mark)}*"])
    result.stdout.fnmatch_lines(["E *The fixture forbid_cuda_init forbids that*"])
    result.stdout.fnmatch_lines(["FAILED test_z.py::test_swallowed*", "FAILED test_z.py::test_unseen*"])
    assert "= cudaguard =" not in result.stdout.str()


def test_collection_can_be_forbidden(pytester: pytest.Pytester, session: Session) -> None:
    """The ini option fails the file that asks while it is collected, at its line, and no other."""
    pytester.makeini("[pytest]\ncudaguard_forbid_collection = true\n")
    pytester.makepyfile(test_x=COLLECTING, test_y=TESTS, test_c="import torch\nG = torch.Generator(device='cuda')\ndef test_one():\n    pass\n")
    result = session("--continue-on-collection-errors")
    result.assert_outcomes(passed=3, errors=2)
    for place in (f"E *touched *test_x.py:{_line(COLLECTING, 'DEVICE')}*", "E *found up *test_c.py:4*", "E *imports: *-> test_c.py:2"):
        result.stdout.fnmatch_lines(["E *cudaguard_forbid_collection forbids that*", place])


def test_it_works_under_xdist(pytester: pytest.Pytester, session: Session) -> None:
    """What the workers saw, while they collected and in their tests, is in the one summary."""
    pytest.importorskip("xdist")
    pytester.makepyfile(test_x=COLLECTING, test_y=FORBIDDING)
    result = session("--cudaguard", "-n", "2")
    result.stdout.fnmatch_lines(["cudaguard: on, mode error*"])
    line = _line(COLLECTING, "DEVICE")
    result.stdout.fnmatch_lines([f"CUDA was first initialised while collecting test_x.py:{line} (torch.cuda.is_available, queried)"])
    result.stdout.fnmatch_lines([f"error: *forbidden-init* (test_y.py:{_line(FORBIDDING, '# forbidden')})"])


def test_it_works_with_forked_tests(pytester: pytest.Pytester, session: Session) -> None:
    """A forked test that wakes CUDA is named, and one that touches what collection woke fails with the guard's error."""
    pytest.importorskip("pytest_forked")
    pytester.makepyfile(test_y=TESTS)
    if session("--forked", "-p", "no:cudaguard", "-k", "first").ret != 0:
        pytest.skip("this pytest-forked cannot carry the reports of this pytest")
    result = session("--cudaguard", "--forked")
    result.assert_outcomes(passed=3)
    result.stdout.fnmatch_lines(["CUDA was first initialised by test_y.py::test_waking, at test_y.py:*"])
    pytester.makepyfile(test_x=COLLECTING)
    result = session("--cudaguard", "--forked")
    result.assert_outcomes(passed=2, failed=2)
    result.stdout.fnmatch_lines(["*Cannot re-initialize CUDA in forked subprocess*"])
