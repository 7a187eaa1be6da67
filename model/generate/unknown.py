"""Unknown arguments: what was probably meant."""

from argparse import ArgumentParser
from difflib import get_close_matches

# as nanoGPT, litgpt and transformers call them
OTHER_NAMES = {
    "--start": "--prompt",
    "--input": "--prompt",
    "--num-samples": "--n",
    "--num-return-sequences": "--n",
    "--num-beams": "--beams",
    "--max-length": "--max-new-tokens",
    "--out-dir": "--run",
    "--checkpoint-dir": "--run",
    "--model": "--run",
}


def explain_unknown(argument: str, parser: ArgumentParser) -> str:
    if not argument.startswith("-"):
        return f"unknown argument {argument!r}; did you mean --prompt {argument!r}?"
    flag = argument.partition("=")[0].replace("_", "-")
    flag = OTHER_NAMES.get(flag, flag)
    known = [name for action in parser._actions for name in action.option_strings]
    if near := get_close_matches(flag, known, 1):
        return f"unknown argument {argument!r}; did you mean {near[0]}?"
    hint = "options are written --run runs/name --prompt TEXT; see --help"
    return f"unknown argument {argument!r}; {hint}"
