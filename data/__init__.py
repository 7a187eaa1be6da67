"""Text to batches, without surprises.

Read along the way of a text: sources.py, pairs.py (files.py, documents.py, rows.py), split.py, vocabulary.py,
tokenizer.py, preparation.py, store.py; then from the store to a batch: order.py, windows.py, objective.py,
batch.py, prefetch.py. `python -m data` shows what would be trained on.
"""

from configs.errors import DataError
from data.loader import PairLoader, TokenLoader
from data.objectives import OBJECTIVES
from data.pairs import Docstrings, PairTable, ParallelText, Synthetic
from data.prepare import prepare
from data.sources import Hub, Python, Shakespeare, Table, Text
from data.tokenizers.train import TOKENIZERS

SOURCES = {
    "python": Python,
    "text": Text,
    "table": Table,
    "hub": Hub,
    "shakespeare": Shakespeare,
    "pairs": PairTable,
    "parallel": ParallelText,
    "docstrings": Docstrings,
    "synthetic": Synthetic,
}

__all__ = [
    "OBJECTIVES",
    "SOURCES",
    "TOKENIZERS",
    "DataError",
    "PairLoader",
    "TokenLoader",
    "batches",
    "prepare",
]


def batches(part, objective, tokenizer, *, batch_size, seed):
    """The stream of batches of one part of a corpus."""
    kind = PairLoader if objective.input_kind == "pairs" else TokenLoader
    return kind(part, objective, tokenizer, batch_size=batch_size, seed=seed)
