"""The sizes of a decoder that memory depends on, and those of a few common models, known without a hub.

Counts weights and bytes of a token; knows nothing of recipes or of how a model is loaded.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelShape:
    """A decoder with grouped key/value heads and a gated MLP (Llama, Qwen, Mistral, SmolLM2 and their like).

    Example:
        SHAPES["smollm2-135m-instruct"].parameters  # 134_515_008
    """

    parameters: int
    """All weights, a tied embedding counted once."""
    hidden: int
    layers: int
    heads: int
    """Query heads."""
    kv_heads: int
    head_dim: int
    vocab: int
    intermediate: int
    """Width of the MLP."""
    context: int
    """Longest prompt plus answer, in tokens."""
    tied: bool
    """Whether the output layer is the embedding."""

    @classmethod
    def of(cls, config: Any, *, parameters: int) -> ModelShape:
        """From a Hugging Face text configuration.

        Raises:
            AttributeError: it lacks a size.
        """
        return cls(
            parameters=parameters,
            hidden=config.hidden_size,
            layers=config.num_hidden_layers,
            heads=config.num_attention_heads,
            kv_heads=getattr(config, "num_key_value_heads", None) or config.num_attention_heads,
            head_dim=getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads,
            vocab=config.vocab_size,
            intermediate=config.intermediate_size,
            context=config.max_position_embeddings,
            tied=bool(config.tie_word_embeddings),
        )

    def cached_elements(self) -> int:
        """Numbers in the key/value cache for each token."""
        return 2 * self.layers * self.kv_heads * self.head_dim

    def linear_layers(self) -> tuple[tuple[int, int], ...]:
        """Inputs and outputs of the seven linear layers of a block."""
        query, key = self.heads * self.head_dim, self.kv_heads * self.head_dim
        attention = ((self.hidden, query), (self.hidden, key), (self.hidden, key), (query, self.hidden))
        return (*attention, *2 * ((self.hidden, self.intermediate),), (self.intermediate, self.hidden))

    def linear_parameters(self) -> int:
        """Weights of all these layers."""
        return self.layers * sum(inputs * outputs for inputs, outputs in self.linear_layers())

    def adapter_sizes(self, rank: int) -> tuple[int, ...]:
        """Weights of each of the two matrices of every adapter; one stands at every linear layer of every block."""
        return self.layers * tuple(rank * width for layer in self.linear_layers() for width in layer)

    def lora_parameters(self, rank: int) -> int:
        """Weights of all adapters: rank * (inputs + outputs) each."""
        return sum(self.adapter_sizes(rank))

    def saved_bytes(self, width: int, *, adapters: bool) -> int:
        """Bytes one block keeps for the backward pass, per token, when a number of the compute dtype takes `width`.

        Two norms: input, output and a float32 scale each. Attention: queries, keys, values, output, and a float32
        log-sum for each head. MLP: gate and up. Below float32, adapters keep float32 copies of what each of the seven
        linear layers reads, in place of the norms' outputs; in float32 they keep the product of gate and up.
        """
        query, key = self.heads * self.head_dim, self.kv_heads * self.head_dim
        numbers = 4 * self.hidden + 2 * query + 2 * key + 2 * self.intermediate
        copies = 0
        if adapters and width < 4:
            numbers -= 2 * self.hidden
            copies = 5 * self.hidden + query + self.intermediate
        elif adapters:
            numbers += self.intermediate
        return width * numbers + 4 * (2 + self.heads + copies)

    def working_bytes(self, width: int) -> int:
        """Bytes of what comes and goes while one block is differentiated, per token: MLP-wide gradients above all."""
        return width * (4 * self.intermediate + 2 * self.hidden)


_FIELDS = tuple(field.name for field in fields(ModelShape))

_SMOLLM2_135M = (134_515_008, 576, 30, 9, 3, 64, 49_152, 1_536, 8_192, True)

# In the order of ModelShape's fields, from the models' published configurations.
_TABLE: dict[str, tuple[int | bool, ...]] = {
    "smollm2-135m-instruct": _SMOLLM2_135M,
    "HuggingFaceTB/SmolLM2-135M-Instruct": _SMOLLM2_135M,
    "HuggingFaceTB/SmolLM2-360M-Instruct": (361_821_120, 960, 32, 15, 5, 64, 49_152, 2_560, 8_192, True),
    "HuggingFaceTB/SmolLM2-1.7B-Instruct": (1_711_376_384, 2_048, 24, 32, 32, 64, 49_152, 8_192, 8_192, True),
    "Qwen/Qwen2.5-0.5B-Instruct": (494_032_768, 896, 24, 14, 2, 64, 151_936, 4_864, 32_768, True),
    "Qwen/Qwen2.5-1.5B-Instruct": (1_543_714_304, 1_536, 28, 12, 2, 128, 151_936, 8_960, 32_768, True),
    "Qwen/Qwen2.5-3B-Instruct": (3_085_938_688, 2_048, 36, 16, 2, 128, 151_936, 11_008, 32_768, True),
    "Qwen/Qwen2.5-7B-Instruct": (7_615_616_512, 3_584, 28, 28, 4, 128, 152_064, 18_944, 32_768, False),
}

SHAPES: dict[str, ModelShape] = {
    name: ModelShape(**dict(zip(_FIELDS, row, strict=True)))  # type: ignore[arg-type]
    for name, row in _TABLE.items()
}
"""Models whose shape is known without asking a hub, by the name a recipe gives."""
