"""Environments that hold cudaguard as users install it, made once a session."""

from __future__ import annotations

from pathlib import Path

import pytest

from environments import Environment, backend, sources


@pytest.fixture(scope="session")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel of this checkout."""
    folder = sources(tmp_path_factory.mktemp("sources"))
    backend("build_wheel('out')", folder)
    return next(folder.glob("out/*.whl"))


@pytest.fixture(scope="session")
def bare(tmp_path_factory: pytest.TempPathFactory) -> Environment:
    """An environment without cudaguard."""
    return Environment(tmp_path_factory.mktemp("bare"))


@pytest.fixture(scope="session")
def wheeled(tmp_path_factory: pytest.TempPathFactory, wheel: Path) -> Environment:
    """An environment with the wheel."""
    environment = Environment(tmp_path_factory.mktemp("wheeled"))
    environment.install(str(wheel))
    return environment


@pytest.fixture(scope="session")
def editable(tmp_path_factory: pytest.TempPathFactory) -> Environment:
    """An environment with an editable install."""
    environment = Environment(tmp_path_factory.mktemp("editable"))
    environment.install("--editable", str(sources(tmp_path_factory.mktemp("editable_sources"))))
    return environment


@pytest.fixture(params=["wheeled", "editable"])
def installed(request: pytest.FixtureRequest) -> Environment:
    """Both ways of installing, one after the other."""
    environment: Environment = request.getfixturevalue(request.param)
    return environment
