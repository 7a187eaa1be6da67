"""A mix: several sources, each with a share of the examples."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from configs.compose import with_defaults
from configs.registry import Positive, build, check_value
from data.sources import SOURCES, Source


@dataclass
class Mix(Source):
    """Other sources, by name, each with its settings and a weight."""

    sources: dict[str, Any]

    def __post_init__(self) -> None:
        shared = {"cache": self.cache, "document_mask": self.document_mask}  # set for all at once
        usual = {"val_fraction": self.val_fraction, "weight": 1}
        kinds = {name: SOURCES[name] for name in SOURCES if name != "mix"}
        self.weights: dict[str, float] = {}
        self.members: list[Source] = []
        for name, node in self.sources.items():
            path = f"data.sources.{name}"
            options = usual | with_defaults(check_value(path, node, dict))
            self.weights[name] = check_value(f"{path}.weight", options.pop("weight"), Positive)
            self.members.append(build(path, kinds, options, shared))
        input_kinds = {member.input_kind for member in self.members}
        if len(input_kinds) != 1:
            raise ValueError("the sources must be all text, all pairs or all conversations")
        [self.input_kind] = input_kinds

    def drawn(self, positions: Any) -> Iterator[Any]:
        """Yield for each source how many of the examples before each position it gives: its share,
        rounded down, of those that the sources before it leave. With weights 3 and 1, the first 6
        examples are 4 of the first source and 2 of the second. A subclass may let the shares depend
        on position / batch_size, which is the step; at each position, one source grows by one."""
        weights = [*self.weights.values()]
        for i, weight in enumerate(weights):
            before = positions * (weight / sum(weights[i:])) // 1
            yield before
            positions = positions - before


SOURCES["mix"] = Mix
