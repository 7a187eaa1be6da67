"""Multi-head attention against torch's own, a calculation by hand, and its options one by one."""

import pytest
import torch

from model.attend import Mask, attend, attention_weights, make_cross_mask, make_mask
from model.attention import ATTENTIONS, KVDims, MultiHeadAttention
from model.hub.multihead import from_torch
from model.norm import LayerNorm

B, T, S = 2, 5, 7


def randn(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def copied(torchs, d_model, n_heads, memory=None):
    """Ours with the weights of torch.nn.MultiheadAttention, packed in one matrix or, with kdim and vdim, in
    three."""
    ours = MultiHeadAttention(d_model, n_heads, memory, bias=True, o_bias=True).double()
    ours.load_state_dict(from_torch(torchs.state_dict()))
    return ours


def torch_attention(d_model, n_heads, **widths):
    torch.manual_seed(0)
    torchs = torch.nn.MultiheadAttention(d_model, n_heads, batch_first=True, **widths).double()
    torchs.in_proj_bias.data.normal_()
    torchs.out_proj.bias.data.normal_()
    return torchs


def same(ours, theirs):
    torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-12)


def test_equals_torch_on_itself_and_on_the_past():
    torchs, x = torch_attention(24, 4), randn(B, T, 24)
    ours = copied(torchs, 24, 4)
    same(ours(x, mask=Mask()), torchs(x, x, x)[0])
    lookahead = torch.ones(T, T, dtype=torch.bool).triu(1)
    same(ours(x, mask=Mask(causal=True)), torchs(x, x, x, attn_mask=lookahead)[0])


def test_equals_torch_on_keys_and_values_of_other_widths():
    torchs = torch_attention(24, 4, kdim=10, vdim=14)
    ours = copied(torchs, 24, 4, KVDims(keys=10, values=14))
    x, keys, values = randn(B, T, 24), randn(B, S, 10, seed=1), randn(B, S, 14, seed=2)
    same(ours(x, keys, values, mask=Mask()), torchs(x, keys, values)[0])


def test_equals_torch_under_padding():
    torchs, x, memory = torch_attention(24, 4), randn(B, T, 24), randn(B, S, 24, seed=1)
    ours = copied(torchs, 24, 4)
    visible = torch.arange(S) < torch.tensor([[7], [4]])
    same(
        ours(x, memory, mask=make_cross_mask(visible)),
        torchs(x, memory, memory, key_padding_mask=~visible)[0],
    )
    pos, visible = torch.arange(T)[None], visible[:, :T]
    ours_padded = ours(x, mask=make_mask(pos, pos, causal=False, visible=visible))
    same(ours_padded[visible], torchs(x, x, x, key_padding_mask=~visible)[0][visible])


def test_the_worked_example():
    """Two tokens of width four, by hand: 4 = [1,2].[2,1], 11 = [1,2].[3,4], and so on."""
    x = torch.tensor([[[1.0, 2, 3, 4], [4, 3, 2, 1]]])
    one = MultiHeadAttention(4, 1, head_dim=2)
    one.query.weight.data = one.value.weight.data = torch.tensor([[1.0, 0, 0, 0], [0, 1, 0, 0]])
    one.key.weight.data = torch.tensor([[0.0, 1, 0, 0], [1, 0, 0, 0]])
    q, k, v = one.query(x), one.key(x), one.value(x)
    assert q.tolist() == v.tolist() == [[[1, 2], [4, 3]]]
    assert k.tolist() == [[[2, 1], [3, 4]]]
    assert (q @ k.mT).tolist() == [[[4, 11], [11, 24]]]
    weights = attention_weights(q[:, None], k[:, None], Mask())
    expected = torch.tensor([[0.00704, 0.99296], [0.00010, 0.99990]])
    torch.testing.assert_close(weights[0, 0], expected, rtol=0, atol=5e-6)
    y = attend(q[:, None], k[:, None], v[:, None], Mask())
    expected = torch.tensor([[3.97889, 2.99296], [3.99969, 2.99990]])
    torch.testing.assert_close(y[0, 0], expected, rtol=0, atol=5e-6)
    one.out.weight.data = torch.tensor([[1.0, 0], [0, 1], [0, 0], [0, 0]])
    torch.testing.assert_close(one(x, mask=Mask())[0, :, :2], expected, rtol=0, atol=5e-6)


def test_the_worked_example_with_two_heads():
    two = MultiHeadAttention(4, 2, head_dim=1)
    two.query.weight.data = torch.tensor([[1.0, 0], [0, 1], [1, 0], [0, 1]]).T
    assert two.query(torch.tensor([[1.0, 2, 3, 4], [4, 3, 2, 1]])).tolist() == [[4, 6], [6, 4]]


@pytest.mark.parametrize("group", [2, 4, None])
def test_grouped_heads_are_repeated_heads(group):
    grouped, x = MultiHeadAttention(24, 4, group=group).double(), randn(B, T, 24)
    full = MultiHeadAttention(24, 4).double()
    full.load_state_dict(
        {
            name: p.unflatten(0, (-1, 6)).repeat_interleave(group or 4, 0).flatten(0, 1)
            if name in ("key.weight", "value.weight")
            else p
            for name, p in grouped.state_dict().items()
        }
    )
    same(grouped(x, mask=Mask(causal=True)), full(x, mask=Mask(causal=True)))
    assert grouped.key.out_features == 24 // (group or 4)


def test_every_width_is_free():
    """E_q = 24, E_k = 10, E_v = 14, d_k = 5, d_v = 3: written out head by head."""
    ours = MultiHeadAttention(24, 4, KVDims(10, 14), queries_per_kv=2, head_dim=5, v_head_dim=3).double()
    x, keys, values = randn(B, T, 24), randn(B, S, 10, seed=1), randn(B, S, 14, seed=2)
    heads = []
    for head in range(4):
        shared = head // 2
        q = x @ ours.query.weight[head * 5 : head * 5 + 5].T
        k = keys @ ours.key.weight[shared * 5 : shared * 5 + 5].T
        v = values @ ours.value.weight[shared * 3 : shared * 3 + 3].T
        heads.append((q @ k.mT / 5**0.5).softmax(-1) @ v)
    same(ours(x, keys, values, mask=Mask()), torch.cat(heads, -1) @ ours.out.weight.T)


def test_widths_left_open_follow_the_one_before():
    assert (MultiHeadAttention(24, 4).head_dim, MultiHeadAttention(24, 4).v_head_dim) == (6, 6)
    assert MultiHeadAttention(24, 4, head_dim=5).v_head_dim == 5


def test_qk_norm_by_head_and_over_all_heads():
    x = randn(B, T, 24)
    for kind, axes in (("head", (-1,)), ("full", (1, -1))):
        ours = MultiHeadAttention(24, 4, qk_norm=kind, norm=LayerNorm).double()
        q = ours.query(x).unflatten(-1, (4, 6)).transpose(1, 2)
        centred = q - q.mean(axes, keepdim=True)
        normed = centred / (centred.square().mean(axes, keepdim=True) + 1e-5).sqrt()
        same(ours.query_norm(q), normed)


def test_softcap_bounds_the_scores():
    q, k = 100 * randn(1, 1, T, 6), 100 * randn(1, 1, S, 6, seed=1)
    weights = attention_weights(q, k, Mask(), logit_softcap=2.0)
    assert (weights.amax(-1) / weights.amin(-1)).max() < torch.tensor(4.0).exp() * 1.0001
    same(weights, (2 * ((q @ k.mT) * 6**-0.5 / 2).tanh()).softmax(-1))


def test_weights_of_each_row_sum_to_one_and_give_what_attend_gives():
    q, k, v = randn(B, 4, T, 6), randn(B, 2, T, 6, seed=1), randn(B, 2, T, 3, seed=2)
    pos = torch.arange(T)[None]
    visible = torch.arange(T) >= torch.tensor([[0], [2]])
    for mask in (
        Mask(),
        Mask(causal=True),
        make_mask(pos, pos, causal=True, sliding_window=2, visible=visible),
    ):
        weights = attention_weights(q, k, mask)
        same(weights.sum(-1), torch.ones(B, 4, T, dtype=torch.float64))
        same(weights @ v.repeat_interleave(2, 1), attend(q, k, v, mask))


@pytest.mark.parametrize("groups", [1, 2, 4])
def test_the_fused_kernel_gives_what_plain_products_give(groups, monkeypatch):
    q, k, v = randn(B, 4, T, 6), randn(B, groups, T, 6, seed=1), randn(B, groups, T, 3, seed=2)
    pos = torch.arange(T)[None]
    visible, bias = torch.arange(T) >= torch.tensor([[0], [2]]), randn(1, 4, T, T, seed=3)
    masks = [Mask(), Mask(causal=True), Mask(bias)]
    masks += [
        make_mask(pos, pos, causal=c, sliding_window=2, visible=visible, bias=bias) for c in (True, False)
    ]
    for mask in masks:
        outcomes = []
        for plain in (True, False):
            monkeypatch.setattr("model.attend.plain_is_faster", lambda q, k, v, plain=plain: plain)
            outcomes.append(attend(q, k, v, mask, scale=0.3))
        same(*outcomes)


def test_window_sees_so_many_tokens():
    pos = torch.arange(8)[None]
    seen = make_mask(pos, pos, causal=True, sliding_window=3).bias == 0
    assert seen[0, 0].sum(-1).tolist() == [1, 2, 3, 3, 3, 3, 3, 3]
    seen = make_mask(pos, pos, causal=False, sliding_window=4).bias == 0
    assert seen[0, 0].sum(-1).tolist() == [3, 4, 5, 5, 5, 5, 4, 3]


def test_masks_take_their_cheapest_form():
    pos = torch.arange(8)[None]
    assert make_mask(pos, pos, causal=True) == Mask(causal=True)
    assert make_mask(pos[:, 7:], pos, causal=True) == Mask()
    assert make_mask(pos, pos, causal=False) == Mask()
    assert make_cross_mask(None) == Mask()


@pytest.mark.parametrize("plain", [True, False])
@pytest.mark.parametrize("kind", ATTENTIONS)
def test_dropout_acts_in_training_only(kind, plain, monkeypatch):
    monkeypatch.setattr("model.attend.plain_is_faster", lambda q, k, v: plain)
    torch.manual_seed(0)
    ours, x = ATTENTIONS[kind](24, 4, dropout=0.5).double(), randn(B, T, 24)
    assert not torch.equal(ours(x, mask=Mask()), ours(x, mask=Mask()))
    ours.eval()
    assert torch.equal(ours(x, mask=Mask()), ours(x, mask=Mask()))


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"d_model": 26}, r"d_model \(26\) must be a multiple of n_heads \(4\)"),
        ({"queries_per_kv": 3}, r"n_heads \(4\) must be a multiple of group \(3\)"),
        ({"qk_norm": None}, "qk_norm is None; choose one of: none, head, full"),
        ({"qk_norm": "heads"}, "qk_norm is 'heads'; choose one of: none, head, full"),
        ({"sliding_window": 0}, "window must be above 0 and is 0"),
        ({"logit_softcap": -1.0}, "logit_softcap must be above 0 and is -1.0"),
        ({"sliding_window": 4, "memory": KVDims(8, 8)}, "sliding_window is a distance within one text"),
    ],
)
def test_errors(options, sentence):
    with pytest.raises(ValueError, match=sentence):
        MultiHeadAttention(**{"d_model": 24, "n_heads": 4} | options)
