"""Transformers, which is imported only where a folder is read or written."""

from typing import Any

from configs.errors import HubError


def load_transformers() -> Any:
    try:
        import transformers
    except ImportError as error:
        hint = "pip install -e '.[hub]' installs it"
        raise HubError(f"Hugging Face formats need transformers ({error}); {hint}") from None
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    return transformers
