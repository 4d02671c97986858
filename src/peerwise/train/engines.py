"""The engines that do not run on the model that is trained: made once a run, told when its weights moved.

Which of them a run needs, its recipe says; vLLM's part of the code is loaded only then.
"""

from __future__ import annotations

from typing import Protocol

from peerwise.models.load import Policy
from peerwise.recipe.schema import Recipe
from peerwise.rollout.base import Generator


class Beside(Generator, Protocol):
    """A generator with something to let go of."""

    def close(self) -> None:
        """Let go of it."""
        ...


def open_engines(recipe: Recipe, policy: Policy, *, longest_prompt: int) -> dict[str, Beside]:
    """By the name that `rollout.engine` has for it, every such engine of the recipe's stages, seen to work.

    Args:
        longest_prompt: tokens of the longest prompt of the run.
    Raises:
        EngineError: a server cannot be reached.
        ModelError: a server or vLLM itself does not fit the run.
    """
    rollouts = [stage.rollout for stage in recipe.stage.values()]
    engines = {rollout.engine for rollout in rollouts}
    answers = max([rollout.max_new_tokens for rollout in rollouts] + [recipe.evaluation.max_new_tokens or 0])
    branches = max(rollout.max_branches for rollout in rollouts)
    if "vllm-server" in engines:
        return {"vllm-server": _servers(recipe, policy, longest_prompt + answers, branches)}
    if "vllm" in engines:
        return {"vllm": _beside(recipe, policy, longest_prompt + answers, branches)}
    return {}


def _servers(recipe: Recipe, policy: Policy, needed: int, max_branches: int) -> Beside:
    from peerwise.rollout.vllm.server import Server
    from peerwise.rollout.vllm.servers import VllmServers
    from peerwise.rollout.vllm.weights import make_transfer

    settings = recipe.vllm
    engine = VllmServers(
        policy.model,
        decode=policy.decode,
        end_ids=policy.end_ids,
        servers=[Server(url, timeout=settings.timeout) for url in settings.urls],
        transfer=make_transfer(policy.model, settings.transfer, settings.folder),
        max_branches=max_branches,
    )
    try:
        engine.connect(needed)
    except BaseException:
        engine.close()
        raise
    return engine


def _beside(recipe: Recipe, policy: Policy, needed: int, max_branches: int) -> Beside:
    from peerwise.rollout.vllm.inprocess import VllmBeside
    from peerwise.rollout.vllm.weights import make_transfer

    settings = recipe.vllm
    return VllmBeside(
        policy.model,
        source=policy.source,
        decode=policy.decode,
        end_ids=policy.end_ids,
        transfer=make_transfer(policy.model, settings.transfer, settings.folder),
        memory=settings.memory,
        needed=needed,
        max_branches=max_branches,
    )
