"""What the environment asks for, and how it is read."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from cudaguard import _config
from cudaguard._config import Config, ConfigError, Ignore


@pytest.mark.parametrize("text", ["off", "record", "warn", "error", "reroute", "respawn"])
def test_every_mode_is_read_as_itself(text: str) -> None:
    """A mode's name stands for the mode."""
    assert _config.mode(text) == text
    assert _config.from_environ({"CUDAGUARD": text}).mode == text


@pytest.mark.parametrize(("text", "mode"), [("0", "off"), ("1", "error")])
def test_digits_are_short_for_modes(text: str, mode: str) -> None:
    """0 and 1 are short for off and error."""
    assert _config.mode(text) == mode


@pytest.mark.parametrize("text", ["on", "ERROR", "2", " error", "errors", "true"])
def test_another_mode_is_refused_in_one_line_that_names_the_legal_ones(text: str) -> None:
    """A wrong mode's error is one line with every legal value in it."""
    with pytest.raises(ConfigError) as caught:
        _config.mode(text)
    said = str(caught.value)
    assert "\n" not in said
    assert repr(text) in said
    assert all(legal in said for legal in (*_config.MODES, "0", "1"))


def test_nothing_set_means_the_default() -> None:
    """Without variables the mode is the caller's default, and there is no report, trace or rule."""
    assert _config.from_environ({}) == Config("error")
    assert _config.from_environ({}, "warn").mode == "warn"
    assert _config.from_environ({"CUDAGUARD": ""}).mode == "error"


def test_paths_are_made_absolute_where_they_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A relative report or trace path belongs to the folder the program is in when it is read."""
    monkeypatch.chdir(tmp_path)
    config = _config.from_environ({"CUDAGUARD_REPORT": "a.jsonl", "CUDAGUARD_TRACE": "sub/b.json"})
    assert (config.report, config.trace) == (str(tmp_path / "a.jsonl"), str(tmp_path / "sub" / "b.json"))
    assert _config.path(None) is None
    assert _config.path(tmp_path / "c") == str(tmp_path / "c")


@pytest.mark.parametrize(
    ("text", "rules"),
    [
        ("", ()),
        ("lost-gpu", (Ignore("lost-gpu"),)),
        ("fork-after-init@train.py", (Ignore("fork-after-init", "train.py"),)),
        ("fork-after-init@train.py:12", (Ignore("fork-after-init", "train.py", 12),)),
        ("a@data/x.py:3, b", (Ignore("a", "data/x.py", 3), Ignore("b"))),
        ("a@C:\\x.py:3", (Ignore("a", "C:\\x.py", 3),)),
        ("a@C:\\x.py", (Ignore("a", "C:\\x.py"),)),
        ("a,,", (Ignore("a"),)),
    ],
)
def test_rules_of_the_ignore_variable(text: str, rules: tuple[Ignore, ...]) -> None:
    """An entry is a slug, perhaps with a file, perhaps with its line."""
    assert _config.from_environ({"CUDAGUARD_IGNORE": text}).ignore == rules


def test_copy_limit_is_a_number_of_bytes() -> None:
    """The limit defaults to one GiB, and another text than a whole number is refused."""
    assert _config.from_environ({}).copy_limit == 1 << 30
    assert _config.from_environ({"CUDAGUARD_COPY_LIMIT": "1024"}).copy_limit == 1024
    with pytest.raises(ConfigError, match="COPY_LIMIT '1G' is not a number of bytes"):
        _config.from_environ({"CUDAGUARD_COPY_LIMIT": "1G"})


@pytest.mark.parametrize(("value", "forced"), [("off", True), ("0", True), ("error", False), ("", False), ("nonsense", False)])
def test_only_off_forbids_the_guard(value: str, forced: bool) -> None:
    """The environment's off wins over every call, and nothing else does."""
    assert _config.forced_off({"CUDAGUARD": value}) is forced
    assert _config.forced_off({}) is False


def test_modes_that_are_not_built_act_as_error() -> None:
    """A mode acts as itself once it is built, and as error before."""
    assert {mode: Config(mode).acting for mode in _config.MODES if mode not in _config.NOT_BUILT} == {
        mode: mode for mode in _config.MODES if mode not in _config.NOT_BUILT
    }
    assert {Config(mode).acting for mode in _config.NOT_BUILT} <= {"error"}


def test_reading_the_environment_changes_nothing() -> None:
    """Reading is pure."""
    before = dict(os.environ)
    _config.from_environ(os.environ)
    assert dict(os.environ) == before
