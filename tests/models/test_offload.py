"""Pins offloaded activations: the same gradients, from copies, and the weights not among them."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from transformers import PreTrainedModel

from peerwise.models import offload
from peerwise.models.forward import PackedGroup, completion_logprobs, packed_forward
from peerwise.models.offload import offloaded_activations

GROUPS = [PackedGroup(prompt=(1, 5, 6), completions=((7, 8, 2), (9, 2)))]


@pytest.mark.parametrize("name", ["llama", "gemma2"])
@pytest.mark.parametrize("checkpointing", [False, True])
def test_offloaded_activations_leave_the_gradient_as_it_is(
    tiny: Callable[[str], PreTrainedModel], monkeypatch: pytest.MonkeyPatch, name: str, checkpointing: bool
) -> None:
    monkeypatch.setattr(offload, "SMALLEST", 1)
    model = tiny(name)
    if checkpointing:
        model.activation_checkpointing_enable(activation_checkpointing_kwargs={"use_reentrant": False})
        model.train()

    def gradients(*, offload: bool) -> dict[str, Tensor]:
        with packed_forward(model, offload=offload):
            completion_logprobs(model, GROUPS)[0].sum().backward()
        found = {name: p.grad for name, p in model.named_parameters() if p.grad is not None}
        model.zero_grad(set_to_none=True)
        return found

    expected, found = gradients(offload=False), gradients(offload=True)
    assert found.keys() == expected.keys()
    for key, gradient in expected.items():
        assert torch.equal(found[key], gradient)


def test_what_is_saved_is_copied_except_weights_and_small_tensors(monkeypatch: pytest.MonkeyPatch) -> None:
    # x * w saves both factors. Overwriting x after the forward shows whether its copy or itself is read again.
    monkeypatch.setattr(offload, "SMALLEST", 4)
    layer = torch.nn.Linear(4, 4)
    with offloaded_activations(layer):
        x = torch.ones(4)
        y = (x * layer.weight).sum()
    x.data.fill_(7.0)
    y.backward()
    assert layer.weight.grad is not None
    assert layer.weight.grad.tolist() == [[1.0] * 4] * 4
    # x learns from the weight, which stayed where it was.
    with offloaded_activations(layer):
        x = torch.ones(4, requires_grad=True)
        y = (x * layer.weight).sum()
    layer.weight.data.fill_(3.0)
    y.backward()
    assert x.grad is not None
    assert x.grad.tolist() == [12.0] * 4
    with offloaded_activations(layer):
        x = torch.ones(3)
        y = (x * layer.bias[:3]).sum()
    x.data.fill_(7.0)
    y.backward()
    assert layer.bias.grad is not None
    assert layer.bias.grad.tolist() == [7.0, 7.0, 7.0, 0.0]
