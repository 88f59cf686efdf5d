"""What is installed, where, and what an uninstall leaves."""

from __future__ import annotations

import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

from environments import START_FILES, TOP, Environment, backend, sources


def in_checkout() -> set[str]:
    return {path.relative_to(TOP).as_posix() for path in (TOP / "cudaguard").rglob("*") if path.is_file() and "__pycache__" not in path.parts}


def test_wheel_holds_every_file_of_the_package(wheel: Path) -> None:
    """A sub-package without __init__.py would be left out in silence."""
    names = set(zipfile.ZipFile(wheel).namelist())
    packed = {name for name in names if ".dist-info/" not in name}
    assert packed == in_checkout() | set(START_FILES)


def test_start_files_lie_at_the_root_of_site_packages(installed: Environment) -> None:
    for name in START_FILES:
        assert (installed.site / name).read_bytes() == (TOP / "cudaguard" / "_site" / name).read_bytes()


def test_start_files_are_in_record(installed: Environment) -> None:
    assert set(START_FILES) <= installed.record()


def test_editable_install_uses_its_sources(editable: Environment) -> None:
    """Else the tests of the editable install would test another wheel."""
    assert editable.editable_origin()
    assert not (editable.site / "cudaguard").exists()


@pytest.mark.parametrize("kind", ["wheel", "editable"])
def test_uninstall_leaves_nothing(kind: str, wheel: Path, tmp_path: Path) -> None:
    environment = Environment(tmp_path / "venv")
    before = set(environment.site.iterdir())
    environment.install(*([str(wheel)] if kind == "wheel" else ["--editable", str(sources(tmp_path))]))
    assert set(environment.site.iterdir()) > before
    environment.pip("uninstall", "--quiet", "--yes", "cudaguard")
    assert set(environment.site.iterdir()) - {environment.site / "__pycache__"} == before


def test_sdist_builds_the_same_wheel(wheel: Path, tmp_path: Path) -> None:
    backend("build_sdist('out')", sources(tmp_path))
    with tarfile.open(next(tmp_path.glob("out/*.tar.gz"))) as sdist:
        if sys.version_info >= (3, 12):
            sdist.extractall(tmp_path / "unpacked", filter="data")
        else:
            sdist.extractall(tmp_path / "unpacked")
    (unpacked,) = (tmp_path / "unpacked").iterdir()
    backend("build_wheel('out')", unpacked)
    (second,) = unpacked.glob("out/*.whl")
    assert sorted(zipfile.ZipFile(second).namelist()) == sorted(zipfile.ZipFile(wheel).namelist())


def test_command_is_installed(wheeled: Environment) -> None:
    command = Path(wheeled.python).with_name("cudaguard")
    got = subprocess.run([command, "--help"], capture_output=True, text=True, timeout=60)
    assert got.returncode == 0
    assert "usage" in got.stdout.lower()
