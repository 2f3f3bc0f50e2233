"""pytest plugin ``-p cakernels.sklearn_plugin``: run tests with scikit-learn patched, such as scikit-learn's own.

Every problem is taken over, however small, so that the tests really test this package's solvers. The summary counts the
calls taken over and those left to scikit-learn. Exceptions, in a file named by ``--cakernels-exceptions``, are expected
to fail; each line of it is the end of a test's name, a colon and the reason.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from cakernels.dropin import counts, patch_sklearn, unpatch_sklearn

if TYPE_CHECKING:
    import pytest
    from _pytest.terminal import TerminalReporter


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option that names a file of exceptions."""
    group = parser.getgroup("cakernels")
    group.addoption("--cakernels-exceptions", metavar="FILE", help="tests expected to fail, each with its reason")
    group.addoption("--cakernels-off", action="store_true", help="do not patch scikit-learn: for comparison")


def pytest_configure(config: pytest.Config) -> None:
    """Patch scikit-learn before tests are collected."""
    if not config.getoption("--cakernels-off"):
        patch_sklearn(everything=True)


def pytest_unconfigure() -> None:
    """Restore scikit-learn."""
    unpatch_sklearn()


def exceptions(text: str) -> dict[str, str]:
    """Reasons by the end of a test's name; empty lines and those that begin with # are skipped."""
    lines = [line.strip() for line in text.splitlines()]
    pairs = [line.partition(": ") for line in lines if line and not line.startswith("#")]
    return {name: reason for name, _, reason in pairs}


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark the exceptions."""
    import pytest

    path = config.getoption("--cakernels-exceptions")
    if path is None:
        return
    try:
        reasons = exceptions(Path(path).read_text())
    except OSError as error:
        raise pytest.UsageError(f"--cakernels-exceptions {path}: {error.strerror}") from None
    for item in items:
        names = [f"/{name}" for name in (item.nodeid.partition("[")[0], item.nodeid)]
        for end, reason in reasons.items():
            if any(name.endswith((f"/{end}", f"::{end}")) for name in names):
                item.add_marker(pytest.mark.xfail(reason=reason, strict=False))


def pytest_terminal_summary(terminalreporter: TerminalReporter) -> None:
    """Print the counts of calls."""
    calls = counts()
    if calls is not None:
        terminalreporter.section("cakernels")
        for line in calls.lines():
            terminalreporter.write_line(line)


def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    """Fail the session after an error of this package, although scikit-learn's own code has gone on."""
    calls = counts()
    if calls is not None and calls.errors and exitstatus == 0:
        session.exitstatus = 1
