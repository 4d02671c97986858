"""peerwise: teach language models to reason with GRPO. The public names; kept true by a test."""

from peerwise.records import Completion, Group, Problem, Score

__version__ = "0.1.0"

__all__ = ["Completion", "Group", "Problem", "Score", "__version__"]
