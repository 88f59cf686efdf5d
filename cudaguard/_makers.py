"""Who made a child process, read from the stack that forked or started it. Pure."""

from __future__ import annotations

from ._places import USER, Frame, kind

# First match wins; a path is matched anywhere in a file name, with forward slashes.
TABLE = (
    ("/torchdata/stateful_dataloader/", "stateful-dataloader"),
    ("/torch/utils/data/dataloader.py", "dataloader"),
    ("/gunicorn/arbiter.py", "gunicorn"),
    ("/celery/", "celery"),
    ("/strategies/launchers/multiprocessing.py", "lightning"),
    ("/datasets/arrow_dataset.py", "datasets"),
    ("/joblib/", "joblib"),
    ("/concurrent/futures/process.py", "executor"),
    ("/multiprocessing/pool.py", "pool"),
    ("/multiprocess/pool.py", "pool"),
    ("/billiard/pool.py", "pool"),  # Celery's copy of multiprocessing, which others use too: on Celery's own stack its name came first
    ("/multiprocessing/", "process"),
    ("/multiprocess/", "process"),
    ("/billiard/", "process"),
    ("/subprocess.py", "subprocess"),  # Python in the child before exec: preexec_fn
)


def maker(stack: tuple[Frame, ...]) -> str:
    """The library that made the child: one between the user's innermost line and the fork, else plain `os.fork`."""
    files = [frame.file.replace("\\", "/") for frame in _below_user(stack)]
    return next((name for part, name in TABLE if any(part in file for file in files)), "os.fork")


def _below_user(stack: tuple[Frame, ...]) -> tuple[Frame, ...]:
    """Frames after the user's last one. A server's frames further out made this process, not the one asked about."""
    last = max((i for i, frame in enumerate(stack) if kind(frame.file) == USER), default=-1)
    return stack[last + 1 :]
