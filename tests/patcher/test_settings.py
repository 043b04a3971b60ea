"""The environment variables; the guard's own are in tests/replacements/packing/test_settings.py."""

import re
from pathlib import Path

import pytest

from patcher import _settings
from patcher._settings import VARIABLES, SettingError

ROOT = Path(__file__).parents[2]
SWITCHES = [name for name, variable in VARIABLES.items() if variable.values == ("0", "1")]


@pytest.mark.parametrize("name", VARIABLES)
def test_each_takes_its_values_and_nothing_else(monkeypatch, name):
    variable = VARIABLES[name]
    for value in variable.values:
        for given in (value, f" {value.upper()} "):
            monkeypatch.setenv(name, given)
            assert _settings.read(name) == value
    monkeypatch.setenv(name, " ")
    assert _settings.read(name) == variable.default
    monkeypatch.delenv(name)
    assert _settings.read(name) == variable.default
    monkeypatch.setenv(name, "2")
    with pytest.raises(SettingError, match=f"{name}='2'.*one of: {', '.join(variable.values)}. Unset, it is"):
        _settings.read(name)


@pytest.mark.parametrize("name", SWITCHES)
def test_switches_take_words(monkeypatch, name):
    for word, on in {"on": 1, "Yes": 1, "TRUE": 1, "1": 1, "off": 0, "no": 0, "false": 0, "0": 0}.items():
        monkeypatch.setenv(name, word)
        assert _settings.is_on(name) is bool(on)


def test_readme_has_the_table():
    rows = re.findall(
        r"^\| `(PATCHER_\w+)` \| (.*?) \| (.*?) \|$", (ROOT / "README.md").read_text("utf-8"), re.MULTILINE
    )
    table = []
    for name, variable in VARIABLES.items():
        values = [f"`{value}`{' (default)' * (value == variable.default)}" for value in variable.values]
        table.append((name, ", ".join(values), variable.meaning))
    assert rows == table


def test_no_other_variable_is_read():
    sources = [path.read_text("utf-8") for name in ("patcher", "replacements") for path in (ROOT / name).rglob("*.py")]
    named = {name for source in sources for name in re.findall(r"PATCHER_[A-Z]+(?:_[A-Z]+)*", source)}
    assert named == set(VARIABLES)
    assert sum("environ.get" in source and "PATCHER_" in source for source in sources) == 1
