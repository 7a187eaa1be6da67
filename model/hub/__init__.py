"""Models to and from Hugging Face formats, without transformers. spec.py describes a model,
family.py a class of transformers, tensors.py converts weights, convert.py folders; families/ has a
table per class."""
