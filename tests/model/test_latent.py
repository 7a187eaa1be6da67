"""Multi-head latent attention: which of its forms is used.

That both give the same result is in test_grid.py, where decoding equals a whole forward pass;
the size of its cache is in test_learning_page.py.
"""

from model.attention import MultiHeadLatentAttention
from tests.parts import alive, part, tiny, tokens


def test_decoding_uses_the_absorbed_form(monkeypatch):
    net = alive(tiny(attention=part("attention", "mla"), position=part("position", "rope")))
    forms = []
    for form in ("absorbed", "expanded"):
        method = getattr(MultiHeadLatentAttention, form)

        def spy(*args, form=form, method=method):
            forms.append(form)
            return method(*args)

        monkeypatch.setattr(MultiHeadLatentAttention, form, spy)
    caches = net.new_caches(9)
    for chunk in tokens(1, 9).split([8, 1], 1):
        net.hidden(chunk, caches=caches)
    assert forms == ["expanded", "expanded", "absorbed", "absorbed"]
