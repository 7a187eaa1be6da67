import pytest


@pytest.fixture(autouse=True)
def room(tmp_path, monkeypatch):
    """Tests write and read files in a folder of their own."""
    monkeypatch.chdir(tmp_path)
