"""Converts models from and to Hugging Face formats, which transformers reads and writes. spec.py
describes a model, family.py a class of transformers, tensors.py converts weights, convert.py
folders, gguf.py a folder to a file for llama.cpp; families/ has a table for each class."""
