import pytest

from replacements.packing.settings import SettingError, check, hybrid_packing, raise_when_unsafe


@pytest.mark.parametrize(
    ("read", "name", "values"),
    [
        (
            raise_when_unsafe,
            "PATCHER_ON_UNSAFE",
            {None: False, "": False, "pad": False, "raise": True, " Raise ": True},
        ),
        (hybrid_packing, "PATCHER_HYBRID_PACKING", {None: True, "": True, "1": True, "0": False, " 0 ": False}),
    ],
)
def test_values(monkeypatch, read, name, values):
    for value, expected in values.items():
        if value is None:
            monkeypatch.delenv(name, raising=False)
        else:
            monkeypatch.setenv(name, value)
        assert read() is expected


@pytest.mark.parametrize(
    ("read", "name", "allowed"),
    [(raise_when_unsafe, "PATCHER_ON_UNSAFE", "pad, raise"), (hybrid_packing, "PATCHER_HYBRID_PACKING", "0, 1")],
)
def test_another_value_is_an_error_that_names_the_allowed_ones(monkeypatch, read, name, allowed):
    monkeypatch.setenv(name, "maybe")
    with pytest.raises(SettingError, match=f"{name}='maybe'.*{allowed}"):
        read()
    with pytest.raises(SettingError, match=name):
        check()
