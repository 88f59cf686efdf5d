"""Virtual environments to install cudaguard into, and the means to build it.

Everything is built from a copy of the checkout, since setuptools leaves `build/` behind and would pack what lies in an old one; and with the
setuptools at hand, so that nothing is downloaded.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

TOP = Path(__file__).resolve().parents[2]
START_FILES = ("_cudaguard_pytest.py", "_cudaguard_start.py", "cudaguard.pth", "cudaguard.start")


class Environment:
    """A virtual environment, and how to run things in it."""

    def __init__(self, folder: Path) -> None:
        """Make it, with torch, wrapt and whatever else the environment that runs the tests has, but not its cudaguard."""
        venv.create(folder, with_pip=False, symlinks=os.name != "nt")
        self.python = str(folder / ("Scripts" if os.name == "nt" else "bin") / "python")
        self.site = Path(self.run("import sysconfig; print(sysconfig.get_path('purelib'))").stdout.strip())
        # The folder itself would not do: there may be a cudaguard in it, which an editable install would lose to.
        host = folder / "host"
        host.mkdir()
        for entry in Path(sysconfig.get_path("purelib")).iterdir():
            if "cudaguard" not in entry.name:
                (host / entry.name).symlink_to(entry)
        (self.site / "zz_host.pth").write_text(f"{host}\n")

    def run(self, code: str, *flags: str, cwd: Path | None = None, **variables: str) -> subprocess.CompletedProcess[str]:
        """Run the code in a new interpreter, with no variable of ours or of Python's but those given."""
        environ = {name: value for name, value in os.environ.items() if "CUDAGUARD" not in name and not name.startswith("PYTHON")}
        command = [self.python, *flags, "-c", code]
        return subprocess.run(command, env=environ | variables, cwd=cwd or self.folder, capture_output=True, text=True, timeout=120)

    @property
    def folder(self) -> Path:
        """A folder without modules, to run in: `python -c` looks for modules where it stands."""
        return Path(self.python).parent

    def modules(self, code: str = "", *flags: str, **variables: str) -> set[str]:
        """The modules that are loaded after the code."""
        got = self.run(f"{code}\nimport sys; print('\\n'.join(sys.modules))", *flags, **variables)
        assert got.returncode == 0, got.stderr
        return set(got.stdout.splitlines())

    def pip(self, *arguments: str) -> None:
        run(sys.executable, "-m", "pip", "--python", self.python, *arguments)

    def install(self, *what: str) -> None:
        self.pip("install", "--quiet", "--no-deps", "--no-index", "--no-build-isolation", *what)

    def record(self) -> set[str]:
        """The files that the installer knows it owns, by RECORD."""
        (record,) = self.site.glob("cudaguard-*.dist-info/RECORD")
        return {line.split(",")[0] for line in record.read_text().splitlines()}

    def editable_origin(self) -> bool:
        (info,) = self.site.glob("cudaguard-*.dist-info")
        direct = info / "direct_url.json"
        return direct.exists() and bool(json.loads(direct.read_text()).get("dir_info", {}).get("editable"))


def run(*command: str, cwd: Path | None = None) -> None:
    got = subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=300)
    assert got.returncode == 0, f"{command}\n{got.stdout}\n{got.stderr}"


def sources(folder: Path) -> Path:
    """A clean copy of what is packed."""
    shutil.copytree(TOP / "cudaguard", folder / "cudaguard", ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("setup.cfg", "pyproject.toml", "LICENSE", "README.md"):
        shutil.copy(TOP / name, folder / name)
    return folder


def backend(call: str, folder: Path) -> None:
    """Call the build backend as a build front end would, in the source folder."""
    run(sys.executable, "-c", f"from setuptools import build_meta; build_meta.{call}", cwd=folder)
