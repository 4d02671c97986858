"""Pins the packed shared-prompt forward to the plain one: one row for each completion, prompt repeated, no padding,
Hugging Face's own attention. Values, entropies and parameter gradients, on every tiny architecture.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from transformers import PreTrainedModel

from peerwise.errors import ModelError
from peerwise.models.attention import NAME, use_attention
from peerwise.models.forward import PackedGroup, completion_logprobs, head_of, packed_forward

Build = Callable[[str], PreTrainedModel]

ARCHITECTURES = ["llama", "qwen2", "qwen3", "gemma", "gemma2", "mistral", "gpt_neox"]
VOCABULARY = 97


def random_groups(seed: int, num_groups: int = 3) -> list[PackedGroup]:
    """Groups of 1 to 4 answers of 1 to 9 tokens; prompts of 1 to 11 tokens, some longer than every window."""
    rng = random.Random(seed)

    def ids(length: int) -> tuple[int, ...]:
        return tuple(rng.randrange(VOCABULARY) for _ in range(length))

    return [
        PackedGroup(prompt=ids(rng.randint(1, 11)), completions=tuple(ids(rng.randint(1, 9)) for _ in range(size)))
        for size in (rng.randint(1, 4) for _ in range(num_groups))
    ]


def plain_logprobs(
    model: PreTrainedModel, groups: Sequence[PackedGroup], temperature: float = 1.0
) -> tuple[Tensor, Tensor]:
    """[M] log-probs and entropies, one unpadded row at a time through the model's own forward."""
    logprobs, entropies = [], []
    for group in groups:
        for completion in group.completions:
            ids = torch.tensor([[*group.prompt, *completion]])
            logits = model(input_ids=ids, use_cache=False).logits[0]
            table = (logits / temperature).log_softmax(-1)[len(group.prompt) - 1 : -1]
            logprobs.append(table[torch.arange(len(completion)), torch.tensor(completion)])
            entropies.append(-(table.exp() * table).sum(-1))
    return torch.cat(logprobs), torch.cat(entropies)


def packed_logprobs(model: PreTrainedModel, groups: Sequence[PackedGroup], **options: Any) -> tuple[Tensor, Tensor]:
    with packed_forward(model):
        return completion_logprobs(model, groups, **options)


def gradients(model: PreTrainedModel, logprobs: Tensor, upstream: Tensor) -> dict[str, Tensor]:
    """Gradient of a random mixture of the log-probs by every parameter, taken off the model.

    The model must still run the attention it ran in the forward: checkpointed blocks are computed again here.
    """
    (logprobs @ upstream).backward()
    found = {name: p.grad for name, p in model.named_parameters() if p.grad is not None}
    model.zero_grad(set_to_none=True)
    return found


def packed_gradients(model: PreTrainedModel, groups: Sequence[PackedGroup], upstream: Tensor) -> dict[str, Tensor]:
    with packed_forward(model):
        return gradients(model, completion_logprobs(model, groups)[0], upstream)


def assert_same_gradients(actual: dict[str, Tensor], expected: dict[str, Tensor]) -> None:
    """Equal to 1e-4 of the largest gradient in the model.

    Both sum the same float32 terms in another order. A term is off by about 6e-8 of the largest one, through a few
    layers and a hundred terms that partly cancel some 1e-6 to 1e-5 of the largest sum; a single entry may be near 0
    by cancellation, so the scale is that of the model and not of the entry. A wrong mask or position is off by 1e-1.
    """
    assert actual.keys() == expected.keys()
    largest = max(float(g.abs().max()) for g in expected.values())
    for name, gradient in expected.items():
        difference = float((actual[name] - gradient).abs().max())
        assert difference <= 1e-4 * largest, f"{name}: off by {difference} where the largest gradient is {largest}"


@pytest.mark.parametrize("name", ARCHITECTURES)
@settings(max_examples=8)
@given(seed=st.integers(0, 10_000), temperature=st.sampled_from([0.6, 1.0, 1.5]), chunk=st.integers(1, 40))
def test_packed_logprobs_are_those_of_one_row_for_each_answer(
    tiny: Build, name: str, seed: int, temperature: float, chunk: int
) -> None:
    model, groups = tiny(name), random_groups(seed)
    with torch.no_grad():
        logprobs, entropies = packed_logprobs(model, groups, temperature=temperature, chunk=chunk)
        expected, expected_entropies = plain_logprobs(model, groups, temperature)
    assert (logprobs.dtype, entropies.dtype) == (torch.float32, torch.float32)
    torch.testing.assert_close(logprobs, expected, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(entropies, expected_entropies, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", ARCHITECTURES)
@pytest.mark.parametrize("checkpointing", [False, True])
@pytest.mark.parametrize("seed", [1, 2])
def test_packed_gradients_are_those_of_one_row_for_each_answer(
    tiny: Build, name: str, checkpointing: bool, seed: int
) -> None:
    model, groups = tiny(name), random_groups(seed)
    upstream = torch.randn(
        sum(len(y) for group in groups for y in group.completions), generator=torch.Generator().manual_seed(seed)
    )
    expected = gradients(model, plain_logprobs(model, groups)[0], upstream)
    if checkpointing:
        model.activation_checkpointing_enable(activation_checkpointing_kwargs={"use_reentrant": False})
        model.train()
    assert_same_gradients(packed_gradients(model, groups, upstream), expected)


def test_checkpointed_blocks_really_are_computed_again(tiny: Build) -> None:
    # Otherwise the test above would compare the same path twice.
    model, calls = tiny("llama"), 0

    def count(*ignored: object) -> None:
        nonlocal calls
        calls += 1

    model.activation_checkpointing_enable(activation_checkpointing_kwargs={"use_reentrant": False})
    model.train()
    model.model.layers[0].mlp.register_forward_pre_hook(count)
    packed_gradients(model, [PackedGroup(prompt=(5,), completions=((6, 7),))], torch.ones(2))
    assert calls == 2


@pytest.mark.parametrize("name", ["llama", "gemma2", "mistral"])
def test_a_group_split_over_two_forwards_has_the_same_gradient(tiny: Build, name: str) -> None:
    model = tiny(name)
    answers = ((8, 9, 2), (10, 2), (11, 12, 13, 14, 15, 2), (2,))
    whole = PackedGroup(prompt=(1, 4, 5, 6, 7, 8), completions=answers)
    parts = [PackedGroup(prompt=whole.prompt, completions=answers[at]) for at in (slice(0, 1), slice(1, 4))]
    upstream = torch.randn(12, generator=torch.Generator().manual_seed(3))
    expected = packed_gradients(model, [whole], upstream)
    first = packed_gradients(model, parts[:1], upstream[:3])
    second = packed_gradients(model, parts[1:], upstream[3:])
    assert_same_gradients({key: first[key] + second[key] for key in expected}, expected)


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_a_group_does_not_see_its_neighbours_in_the_row(tiny: Build, name: str) -> None:
    model, groups = tiny(name), random_groups(7)
    with torch.no_grad():
        together, _ = packed_logprobs(model, groups)
        alone = torch.cat([packed_logprobs(model, [group])[0] for group in groups])
    torch.testing.assert_close(together, alone, rtol=1e-5, atol=1e-5)


def test_an_answer_does_not_see_the_other_answers_of_its_group(tiny: Build) -> None:
    model = tiny("llama")
    kept = (20, 21, 22, 2)
    with torch.no_grad():
        one, _ = packed_logprobs(model, [PackedGroup(prompt=(1, 5, 6), completions=((7, 8), kept))])
        other, _ = packed_logprobs(model, [PackedGroup(prompt=(1, 5, 6), completions=((90, 91, 92, 93), kept))])
    torch.testing.assert_close(one[2:], other[4:], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", ["llama", "gemma2"])
def test_the_model_is_as_before_after_the_block(tiny: Build, name: str) -> None:
    model = tiny(name)
    before = model.config._attn_implementation
    with pytest.raises(RuntimeError, match="inside"), use_attention(model, NAME):
        raise RuntimeError("inside")
    assert model.config._attn_implementation == before
    model(input_ids=torch.tensor([[1, 5, 6]]))  # would raise if the packed attention were still in place


def test_without_a_plan_the_packed_attention_refuses_to_run(tiny: Build) -> None:
    model = tiny("llama")
    with use_attention(model, NAME), pytest.raises(ModelError, match="plan"):
        model(input_ids=torch.tensor([[1, 5, 6]]))


def test_a_model_under_another_attention_is_refused_or_right_but_never_silently_wrong(tiny: Build) -> None:
    # The packed row looks like one long text to any other attention, which would see across answers and groups.
    model, groups = tiny("llama"), random_groups(8)
    with torch.no_grad():
        expected, _ = plain_logprobs(model, groups)
        try:
            logprobs, _ = completion_logprobs(model, groups)
        except ModelError:
            return
    torch.testing.assert_close(logprobs, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("key", ["logit_scale", "logits_scaling", "lm_head_multiplier"])
def test_logits_scaled_in_a_way_we_do_not_follow_are_refused(tiny: Build, key: str) -> None:
    model = tiny("llama")
    setattr(model.config, key, 0.5)
    with pytest.raises(ModelError, match=key):
        packed_logprobs(model, [PackedGroup(prompt=(5,), completions=((6,),))])


def test_an_output_layer_with_something_around_it_is_refused(tiny: Build) -> None:
    # An adapter on the output layer would be ignored: the head is read as a plain weight.
    class Wrapped(nn.Linear):
        pass

    model = tiny("llama")
    model.set_output_embeddings(Wrapped(32, VOCABULARY, bias=False))
    with pytest.raises(ModelError, match="Wrapped"):
        head_of(model)


def test_a_head_scale_of_one_is_not_refused(tiny: Build) -> None:
    model = tiny("llama")
    model.config.logit_scale = 1.0
    assert head_of(model).weight.shape == (VOCABULARY, 32)


def test_the_head_has_the_soft_cap_of_the_model(tiny: Build) -> None:
    model, ids = tiny("gemma2"), torch.tensor([[1, 5, 6]])
    hidden = model.base_model(input_ids=ids).last_hidden_state[0]
    torch.testing.assert_close(head_of(model).logits(hidden), model(input_ids=ids).logits[0])
