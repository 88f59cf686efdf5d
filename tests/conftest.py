"""For all tests: no variable of the guard from outside, and tests marked `gpu` only where there is one."""

from __future__ import annotations

import glob
import os
import signal

import pytest

pytest_plugins = ["pytester"]  # pytest takes it from the topmost conftest alone

# Before any test module imports the guard: whoever runs the tests under it tests what they set here, not what a test asks for.
for _name in [name for name in os.environ if name.startswith("CUDAGUARD")]:
    del os.environ[_name]

# A shell starts what it puts in the background with Ctrl-C ignored, and the programs of the tests would inherit that.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    # By device file: asking torch would initialise CUDA here and poison every fork of every test.
    if glob.glob("/dev/nvidia[0-9]*"):
        return
    for item in items:
        if item.get_closest_marker("gpu"):
            item.add_marker(pytest.mark.skip(reason="needs a GPU"))
