"""How many tokens go through the model at once: a fixed number, or one that is found by trying.

Knows tokens and bytes; what is computed with them is the caller's.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal, TypeVar

import torch
from transformers import PreTrainedModel

from peerwise.errors import TrainingError
from peerwise.models.lora import lora_layers
from peerwise.recipe.shape import ModelShape
from peerwise.rollout.native.memory import spare_bytes

Result = TypeVar("Result")

LARGEST, SMALLEST = 32_768, 64
"""Between these a budget is looked for: beyond the one, products gain nothing; below the other, too little is done."""


@dataclass(slots=True)
class TokenBudget:
    """Tokens of one forward and backward, prompts included.

    Example:
        TokenBudget(4096).run(lambda tokens: passes_over(groups, tokens), forget=optimizer.zero_grad)
    """

    tokens: int
    automatic: bool = False
    """Halved when memory does not suffice; otherwise that ends the run."""
    say: Callable[[str], None] = field(default=lambda text: None)
    """Told when the budget changes."""

    def run(self, attempt: Callable[[int], Result], *, forget: Callable[[], None] = lambda: None) -> Result:
        """What `attempt(tokens)` gives, made again from the start with half the tokens while memory does not suffice.

        Args:
            forget: undoes what an interrupted attempt has left behind, so that the next one adds to nothing.
        Raises:
            TrainingError: memory does not suffice for the smallest budget, or for a fixed one.
        """
        while True:
            try:
                return attempt(self.tokens)
            except torch.OutOfMemoryError as error:
                reason = str(error).splitlines()[0]
            # Outside the handler: its traceback would keep the tensors of the failed attempt alive.
            forget()
            if torch.cuda.is_available():
                torch.cuda.empty_cache()
            self._halve(reason)

    def _halve(self, reason: str) -> None:
        if not self.automatic:
            raise TrainingError(
                f"a micro-batch of {self.tokens} tokens does not fit into memory ({reason}); lower "
                "optimizer.micro_batch_tokens or set it to 'auto', or set model.gradient_checkpointing"
            )
        if self.tokens // 2 < SMALLEST:
            raise TrainingError(
                f"not even {self.tokens} tokens fit into memory ({reason}); set model.gradient_checkpointing or "
                "model.lora_rank, or take a smaller model"
            )
        self.tokens //= 2
        self.say(f"out of memory: optimizer.micro_batch_tokens is {self.tokens} from here on; the step starts again")


def budget_of(tokens: int | TokenBudget) -> TokenBudget:
    """A plain number is a fixed budget."""
    return tokens if isinstance(tokens, TokenBudget) else TokenBudget(tokens)


def make_budget(setting: int | Literal["auto"], model: PreTrainedModel, say: Callable[[str], None]) -> TokenBudget:
    """The budget of one stage, as its recipe asks for it.

    'auto' begins with what the memory that is free now should hold beside the gradients. A GPU corrects the guess when
    it is too high; on a CPU, where a process is killed without a word, it is all there is.
    """
    if setting != "auto":
        return TokenBudget(setting)
    trained = sum(p.numel() for p in model.parameters() if p.requires_grad)
    free = spare_bytes(model.device) - 4 * trained
    tokens = first_guess(free, _bytes_per_token(model))
    say(f"optimizer.micro_batch_tokens: {tokens}, for {max(0, free) / 2**30:.1f} GiB of memory")
    return TokenBudget(tokens, automatic=True, say=say)


def first_guess(free: int, per_token: float) -> int:
    """The largest power of two of tokens, from SMALLEST to LARGEST, whose bytes fit into `free`."""
    tokens = LARGEST
    while tokens > SMALLEST and tokens * per_token > free:
        tokens //= 2
    return tokens


def _bytes_per_token(model: PreTrainedModel) -> float:
    """What training keeps of a token; an architecture that does not tell its sizes is taken for a wide one."""
    width: int = model.dtype.itemsize
    try:
        shape = ModelShape.of(model.config.get_text_config(), parameters=0)
    except AttributeError:
        return 40.0 * width * int(model.config.hidden_size) * int(model.config.num_hidden_layers)
    block = shape.saved_bytes(width, adapters=bool(lora_layers(model)))
    if model.is_gradient_checkpointing:
        return width * shape.layers * shape.hidden + block
    return shape.layers * block
