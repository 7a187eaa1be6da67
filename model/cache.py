"""Cache: what a layer remembers between decoding steps."""

from typing import NamedTuple


class KVCache:
    """Buffers that fill along their next-to-last axis: keys and values, or the one latent of MLA. They are
    made once, at the first append, so a step copies nothing but what is new. Without a size they hold just
    that append."""

    def __init__(self, size=None):
        self.size, self.length, self.buffers = size, 0, []

    def append(self, *new):
        """Remember, and return all that is remembered."""
        end = self.length + new[0].shape[-2]
        if not self.buffers:
            self.size = self.size or end
            self.buffers = [n.new_zeros(*n.shape[:-2], self.size, n.shape[-1]) for n in new]
        if len(new[0]) != len(self.buffers[0]):
            raise ValueError(f"the cache holds {len(self.buffers[0])} rows and cannot take {len(new[0])}")
        if end > self.size:
            raise ValueError(f"the cache holds {self.size} positions and cannot take {end}")
        for buffer, n in zip(self.buffers, new, strict=True):
            buffer[..., self.length : end, :] = n
        self.length = end
        return self.read()

    def read(self):
        return [buffer[..., : self.length, :] for buffer in self.buffers]

    def select_rows(self, rows):
        """Go on with the rows of these numbers, some of them several times."""
        self.buffers = [buffer[rows] for buffer in self.buffers]

    def keep_last(self, length):
        """All but so many of the newest."""
        for buffer in self.buffers:
            buffer[..., :length, :] = buffer[..., self.length - length : self.length, :].clone()
        self.length = length

    def overwrite_rows(self, rows, other):
        """The newest of these rows are from now on those of another cache."""
        for buffer, new in zip(self.buffers, other.read(), strict=True):
            buffer[rows, ..., self.length - other.length : self.length, :] = new


class LayerCache(NamedTuple):
    self_attn: KVCache  # grows by each token decoded
    cross_attn: KVCache  # the keys and values of a memory, filled once
