"""Errors: what is wrong with a folder in the Hugging Face formats, in one sentence."""


class HubError(ValueError):
    """A folder or model that cannot go to or from these formats. Commands end with exit code 4."""
