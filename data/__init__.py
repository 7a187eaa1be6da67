"""Text to batches.

readers.py and sources.py read text; prepare.py splits and tokenizes it (tokenizers/) into store.py; loader.py
and shuffle.py choose the examples of each batch, and objectives.py turns them into inputs and targets.
corpus.py does all of this for a config, disk.py writes safely, and `python -m data` prints a preview.
"""
