"""The sources; source.py has the usual one, and the base class. data/mix.py adds the mix of
several."""

from configs.registry import Registry
from data.sources.files import Text
from data.sources.hub import Hub, Shakespeare
from data.sources.pairs import Synthetic
from data.sources.source import Document as Document
from data.sources.source import Python, Source
from data.sources.tables import Chat, PairTable, TextTable

SOURCES: Registry[type[Source]] = Registry(
    python=Python,
    text=Text,
    table=TextTable,
    hub=Hub,
    shakespeare=Shakespeare,
    pairs=PairTable,
    chat=Chat,
    synthetic=Synthetic,
)
