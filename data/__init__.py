"""Text to batches.

In the order in which a text passes through them: files.py, readers.py, sources.py and pairs.py read it;
prepare.py splits it and tokenizes it with tokenizers/ into store.py; loader.py and shuffle.py choose the
examples of each batch, and objectives.py turns them into inputs and targets. corpus.py does all of this for a
config, disk.py writes safely, and `python -m data` prints a preview.
"""

from data.objectives import OBJECTIVES
from data.pairs import Docstrings, PairTable, ParallelText, Synthetic
from data.sources import Hub, Python, Shakespeare, Table, Text
from data.tokenizers.train import TOKENIZERS

SOURCES = {"python": Python, "text": Text, "table": Table, "hub": Hub, "shakespeare": Shakespeare}
SOURCES |= {"pairs": PairTable, "parallel": ParallelText, "docstrings": Docstrings, "synthetic": Synthetic}

__all__ = ["OBJECTIVES", "SOURCES", "TOKENIZERS"]
