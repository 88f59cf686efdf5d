"""Look at this process and its environment for `doctor`. Never initialises CUDA: torch is imported, but asked nothing.

Every function gives plain values that JSON can carry; what they mean is said in :mod:`cudaguard._cli.doctor`.
"""

from __future__ import annotations

import glob
import os
import platform
import sys
from collections.abc import Mapping
from typing import Any

TYPE_CHECKING = False
if TYPE_CHECKING:
    from .._config import Config

Facts = dict[str, Any]

FILES = ("cudaguard.pth", "cudaguard.start")
# Variables of other people that change what is found here.
VARIABLES = (
    "CUDA_VISIBLE_DEVICES",
    "PYTORCH_NVML_BASED_CUDA_CHECK",
    "PYTORCH_CUDA_ALLOC_CONF",
    "PYTORCH_ALLOC_CONF",
    "PYTORCH_HIP_ALLOC_CONF",
)
DEVICE_FILES = ("/dev/nvidia[0-9]*", "/dev/dxg", "/dev/kfd")


def collect() -> dict[str, Facts]:
    """All facts, by section. The driver comes first: importing torch may be what wakes it."""
    from .. import _config

    config = _config.current()
    _config.use(config._replace(trace=None))  # to look is no event of the user's program
    driver, torch = _driver()
    return {
        "versions": _versions(torch),
        "guard": _guard(config, os.environ),
        "hooks": _hooks(),
        "driver": driver,
        "processes": _processes(),
        "environment": _environment(os.environ),
        "platform": _platform(),
    }


def _driver() -> tuple[Facts, Any]:
    from .. import _driver as driver

    before = driver.up()
    torch = _torch()
    facts = {
        "can be asked": driver.watched(),
        "up": driver.up(),
        "woken by importing torch": driver.up() and not before,
        "simulated": driver.simulated(),
    }
    return {**facts, "device files": sorted(file for pattern in DEVICE_FILES for file in glob.glob(pattern))}, torch


def _torch() -> Any:
    """torch, or the reason why it cannot be imported: a broken CUDA library is a common one, and an OSError."""
    try:
        import torch
    except Exception as error:
        return error
    return torch


def _versions(torch: Any) -> Facts:
    from .. import __version__

    facts = {"cudaguard": __version__, "python": platform.python_version(), "executable": sys.executable, "wrapt": _version("wrapt")}
    if isinstance(torch, Exception):
        return {**facts, "torch": None, "torch error": f"{type(torch).__name__}: {torch}".splitlines()[0], "cuda build": None, "hip build": None}
    return {**facts, "torch": str(torch.__version__), "torch error": None, "cuda build": torch.version.cuda, "hip build": torch.version.hip}


def _version(package: str) -> str | None:
    from importlib import metadata

    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _guard(config: Config, environ: Mapping[str, str]) -> Facts:
    from .. import _activate, _config, _respond

    return {
        "mode": config.mode,
        "built": config.mode not in _config.NOT_BUILT,
        "CUDAGUARD": _activate._user_environ["CUDAGUARD"],
        "start-up file": start_files(),
        "start-up file ran": "_cudaguard_start" in sys.modules,
        "report": config.report,
        "trace": config.trace,
        "not writable": [path for path in (config.report, config.trace) if path is not None and not writable(path)],
        "ignored": environ.get("CUDAGUARD_IGNORE") or None,
        "simulate": environ.get("CUDAGUARD_SIMULATE") or None,
        "stepped aside": [finding["message"] for finding, _ in _respond.findings if finding["slug"] == "internal"],
    }


def writable(path: str) -> bool:
    """Whether a file can be appended to, or made."""
    return os.access(path if os.path.exists(path) else os.path.dirname(path), os.W_OK)


def start_files() -> list[str]:
    """The start-up files in folders where Python looks for them."""
    found = (os.path.join(folder, name) for folder in dict.fromkeys(_site_folders()) for name in FILES)
    return [path for path in found if os.path.isfile(path)]


def _site_folders() -> list[str]:
    """Where Python reads .pth files: nowhere under `python -S`."""
    if sys.flags.no_site:
        return []
    import site

    return [*site.getsitepackages(), *([site.getusersitepackages()] if site.ENABLE_USER_SITE else [])]


def _hooks() -> Facts:
    """What is replaced now. While the guard is off nothing is, and asking would load the hooks."""
    if "cudaguard._hooks" not in sys.modules:
        return {"patched": [], "not watched": []}
    from .. import _hooks as hooks

    status = hooks.status()
    return {"patched": status["patched"], "not watched": status["not watched"]}


def _processes() -> Facts:
    import multiprocessing

    methods = multiprocessing.get_all_start_methods()  # the default is first
    return {"start methods": methods, "default start method": methods[0]}


def _environment(environ: Mapping[str, str]) -> Facts:
    return {**{name: environ.get(name) for name in VARIABLES}, "expandable segments": expandable(environ)}


def expandable(environ: Mapping[str, str]) -> bool:
    """Whether PyTorch's allocator is told to use expandable segments."""
    settings = (environ.get(name, "") for name in VARIABLES if name.endswith("ALLOC_CONF"))
    return any("expandable_segments:true" in setting.lower().replace(" ", "") for setting in settings)


def _platform() -> Facts:
    return {"system": platform.system(), "release": platform.release(), "wsl": wsl(platform.release())}


def wsl(release: str) -> bool:
    """Whether a kernel's release is that of the Windows Subsystem for Linux."""
    return "microsoft" in release.lower()
