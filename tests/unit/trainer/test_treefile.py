from typing import Any

import pytest
import torch

from fdl_trainer import treefile


def same(a: Any, b: Any) -> bool:
    if isinstance(a, torch.Tensor):
        return isinstance(b, torch.Tensor) and a.dtype == b.dtype and torch.equal(a, b)
    if type(a) is not type(b):
        return False
    if isinstance(a, dict):
        return list(a) == list(b) and all(same(a[key], b[key]) for key in a)
    if isinstance(a, list | tuple):
        return len(a) == len(b) and all(same(x, y) for x, y in zip(a, b, strict=True))
    return bool(a == b)


def optimizer_state(kind: Any, **options: Any) -> dict[str, Any]:
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.Linear(3, 2))
    optimizer = kind(model.parameters(), **options)
    for _ in range(3):
        model(torch.randn(5, 4)).square().mean().backward()
        optimizer.step()
    state: dict[str, Any] = optimizer.state_dict()
    return state


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        (torch.optim.Adam, {"lr": 1e-3, "amsgrad": True}),
        (torch.optim.SGD, {"lr": torch.tensor(0.1), "momentum": 0.9, "nesterov": True}),
        (torch.optim.RMSprop, {"centered": True}),
        (torch.optim.Adagrad, {}),
    ],
)
def test_real_optimizers_come_back_bit_for_bit(kind: Any, options: dict[str, Any]) -> None:
    state = optimizer_state(kind, **options)
    again = treefile.unpack(treefile.pack(state))
    assert same(state, again)
    optimizer = kind(torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.Linear(3, 2)).parameters(), **options)
    optimizer.load_state_dict(again)


def test_every_kind_of_value_comes_back_as_what_it_was() -> None:
    shared = torch.arange(6.0).reshape(2, 3)
    tree: dict[Any, Any] = {
        0: [None, True, 1, 0.1, float("inf"), "text", (1, 2), [], {}],
        "views": {"whole": shared, "again": shared, "row": shared[1], "transposed": shared.t()},
        "kinds": [torch.tensor(3), torch.ones(2, dtype=torch.bfloat16), torch.zeros(0), torch.tensor([True])],
    }
    assert same(tree, treefile.unpack(treefile.pack(tree)))


def test_keys_with_dots_do_not_collide() -> None:
    tree = {"a": {"b": torch.tensor(1)}, "a.b": torch.tensor(2)}
    assert same(tree, treefile.unpack(treefile.pack(tree)))


def test_a_copy_does_not_follow_the_original() -> None:
    original = torch.zeros(3)
    copy = treefile.copied({"state": [original, (torch.zeros(1), 5)]})
    original.fill_(7)
    assert same(copy, {"state": [torch.zeros(3), (torch.zeros(1), 5)]})


def test_what_would_need_pickle_is_refused_with_its_place() -> None:
    with pytest.raises(TypeError, match=r"state\.state\.0\.hook is a .*object.* would have to be unpickled"):
        treefile.pack({"state": {0: {"hook": object()}}})
    with pytest.raises(TypeError, match="keys must be strings or integers"):
        treefile.pack({(1, 2): 3})
    with pytest.raises(TypeError, match="only dense tensors"):
        treefile.pack([torch.eye(2).to_sparse()])


@pytest.mark.parametrize("data", [b"", b"\x08\0\0\0\0\0\0\0{}      ", b"\x80\x04}." * 30])
def test_other_bytes_are_refused(data: bytes) -> None:
    with pytest.raises(ValueError, match="hold no packed state"):
        treefile.unpack(data)
