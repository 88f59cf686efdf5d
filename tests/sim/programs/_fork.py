"""Runs something in a forked child and brings back what it printed."""

import os
import signal
import sys
import warnings

from _show import error, text

warnings.simplefilter("ignore")  # Python's remark on forks with threads, torch's on counting devices in a child


def in_child(function):
    """What `function` returned in a forked child, as text, or its exception."""
    reader, writer = os.pipe()
    sys.stdout.flush()
    pid = os.fork()
    if pid == 0:
        signal.alarm(30)
        os.close(reader)
        try:
            line = text(function())
        except Exception as raised:
            line = error(raised)
        os.write(writer, line.encode())
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader, "rb") as answer:
        line = answer.read().decode()
    status = os.waitpid(pid, 0)[1]
    return line if status == 0 else f"child ended with {status}"
