"""Prompt templates: a question becomes chat messages, an answer takes the form the prompt asked for.

One user message and no system message, in few words: every prompt token is paid for in every group. Knows nothing
of tokenizers, models or how an answer is read back.
"""

from __future__ import annotations

from dataclasses import dataclass

from peerwise.errors import RequestError, nearest
from peerwise.records import Message


@dataclass(frozen=True, slots=True)
class Template:
    """How a question is asked and in which form its answer is stated.

    Example:
        Template("boxed", "Put the final answer in \\\\boxed{}.", "\\\\boxed{{answer}}")
    """

    name: str
    instruction: str
    """Appended to the question on a line of its own; empty appends nothing."""
    answer_form: str
    """The last line of a worked solution, with `{answer}` where the answer stands."""

    def ask(self, question: str) -> tuple[Message, ...]:
        """The chat that asks `question`: one user message."""
        content = f"{question}\n{self.instruction}" if self.instruction else question
        return (Message(role="user", content=content),)

    def state(self, answer: str) -> str:
        """`answer` in the form the prompt asks for."""
        return self.answer_form.replace("{answer}", answer)


_ALL = (
    Template("boxed", "Think step by step. Put the final answer in \\boxed{}.", "\\boxed{{answer}}"),
    Template("boxed-zh", "请一步一步推理，最后把答案写在 \\boxed{} 中。", "\\boxed{{answer}}"),
    Template("answer-zh", "请一步一步推理，最后一行写 ### 答案: [..]", "### 答案: [{answer}]"),
    Template("lines", "One step per line, then \\boxed{answer}.", "\\boxed{{answer}}"),
    Template("code", "Write the complete Python code in one ```python block.", "```python\n{answer}\n```"),
    Template("code-zh", "请把完整的 Python 代码写在一个 ```python 代码块中。", "```python\n{answer}\n```"),
    Template("plain", "", "The answer is {answer}."),
)
TEMPLATES: dict[str, Template] = {template.name: template for template in _ALL}


def get(name: str) -> Template:
    """The template called `name`; RequestError with the nearest name when there is none."""
    if name not in TEMPLATES:
        raise RequestError(f"unknown template {name!r}; {nearest(name, TEMPLATES)}")
    return TEMPLATES[name]
