"""Registries of kinds, and what is built from plain data."""

import sys

import pytest

from configs.registry import Registry, build

pytestmark = pytest.mark.quick
LAZY = "wsgiref.headers"  # a module that nothing imports


@pytest.fixture
def kinds(monkeypatch):
    monkeypatch.delitem(sys.modules, LAZY, raising=False)
    return Registry(plain=lambda: "built", lazy=f"{LAZY}:Headers")


def test_a_kind_is_imported_when_it_is_asked_for(kinds):
    assert list(kinds) == ["plain", "lazy"] and "lazy" in kinds and len(kinds) == 2
    with pytest.raises(ValueError, match="x.kind is 'other'; choose one of: plain, lazy"):
        build("x", kinds, {"kind": "other"}, {})
    assert build("x", kinds, {"kind": "plain"}, {}) == "built"
    assert LAZY not in sys.modules

    built = build("x", kinds, {"kind": "lazy", "headers": []}, {})
    assert type(built) is sys.modules[LAZY].Headers
    views = [kinds["lazy"], kinds.get("lazy"), dict(kinds)["lazy"], list(kinds.values())[1]]
    assert set(views) == {type(built)}, "no view shows the string"


def test_no_kind_replaces_another(kinds):
    for name in ("plain", "lazy"):
        with pytest.raises(ValueError, match=f"'{name}' is the name of another kind"):
            kinds[name] = int
    kinds["own"] = int
    assert kinds.pop("own") is int and list(kinds) == ["plain", "lazy"]


def test_a_kind_without_what_is_needed_is_refused(kinds):
    kinds["own"] = lambda memory: memory
    assert build("x", kinds, {"kind": "own"}, {"memory": 1}, needs="memory") == 1
    for kind in ("lazy", "other", ["own"]):
        with pytest.raises(ValueError, match="x.kind is .*; choose one of: own$"):
            build("x", kinds, {"kind": kind}, {}, needs="memory")
