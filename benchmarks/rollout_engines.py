"""One sampling engine in a process of its own, for benchmarks/rollout.py: reads what to draw, answers with seconds.

    python benchmarks/rollout_engines.py ENGINE MODEL_FOLDER DTYPE THREADS

ENGINE is native, torch (native without its compiled kernels), transformers (`generate`), transformers-continuous
(`generate_batch`) or vllm; the last runs under the interpreter of an environment with vLLM and imports nothing of
peerwise. One JSON object a line comes in, {"prompts", "group_size", "new_tokens", "top_p"}, and one goes out,
{"seconds", "tokens"}; {"rate": true} asks for the machine's matrix rate, {"rest": true} gives freed memory back to the
system, and "profile": true beside a job asks for the seconds of each part of the native engine.
Every engine draws at temperature 1, never ends early, and so draws the same number of tokens.
"""

from __future__ import annotations

import cProfile
import json
import os
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

from sweep import give_memory_back

Job = dict[str, Any]
Draw = Callable[[Job], int]
"""Draws everything a job asks for and returns the number of tokens drawn."""


def native(folder: str, dtype: str) -> Draw:
    """Our engine; no end id, so that every answer has its full length."""
    from peerwise.cli.process import keep_freed_memory
    from peerwise.models.load import load
    from peerwise.rollout.base import Request, SamplingParams, sample_key
    from peerwise.rollout.native.engine import NativeEngine

    keep_freed_memory()
    policy = load(folder, dtype=dtype)

    def draw(job: Job) -> int:
        rows = len(job["prompts"]) * job["group_size"]
        engine = NativeEngine(policy.model, decode=policy.decode, end_ids=frozenset(), max_branches=rows)
        requests = [
            Request(prompt_ids=tuple(prompt), keys=tuple(sample_key(0, p, "", i) for i in range(job["group_size"])))
            for p, prompt in enumerate(job["prompts"])
        ]
        params = SamplingParams(max_new_tokens=job["new_tokens"], top_p=job["top_p"])
        return sum(len(c.token_ids) for group in engine.generate(requests, params) for c in group)

    return draw


def torch_only(folder: str, dtype: str) -> Draw:
    """Our engine as it is where kernels cannot be compiled."""
    os.environ["PEERWISE_KERNELS"] = "off"
    return native(folder, dtype)


def transformers(folder: str, dtype: str) -> Draw:
    """`model.generate` as its users call it: prompts repeated for each answer, padded on the left, sampling on."""
    import torch
    from transformers import AutoModelForCausalLM

    from peerwise.cli.process import keep_freed_memory

    keep_freed_memory()
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=getattr(torch, dtype), attn_implementation="sdpa").eval()

    def draw(job: Job) -> int:
        rows = [prompt for prompt in job["prompts"] for _ in range(job["group_size"])]
        longest = max(map(len, rows))
        with torch.inference_mode():
            out = model.generate(
                input_ids=torch.tensor([[0] * (longest - len(row)) + row for row in rows]),
                attention_mask=torch.tensor([[0] * (longest - len(row)) + [1] * len(row) for row in rows]),
                do_sample=True,
                top_k=0,
                top_p=job["top_p"],
                max_new_tokens=job["new_tokens"],
                min_new_tokens=job["new_tokens"],
                pad_token_id=0,
            )
        return (out.shape[1] - longest) * len(rows)

    return draw


def transformers_continuous(folder: str, dtype: str) -> Draw:
    """transformers' own continuous batching, `model.generate_batch`: a prompt once for its group, paged cache.

    The cache is as large as the job needs, so that no answer waits: by itself it would take nine tenths of all memory.
    """
    import torch
    from transformers import AutoModelForCausalLM, GenerationConfig
    from transformers.generation import ContinuousBatchingConfig

    from peerwise.cli.process import keep_freed_memory

    keep_freed_memory()
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=getattr(torch, dtype), attn_implementation="sdpa").eval()

    def draw(job: Job) -> int:
        rows = len(job["prompts"]) * job["group_size"]
        longest = max(map(len, job["prompts"])) + job["new_tokens"]
        pages = rows * -(-longest // PAGE)
        answers = model.generate_batch(
            job["prompts"],
            generation_config=GenerationConfig(
                do_sample=True,
                temperature=1.0,
                top_k=0,
                top_p=job["top_p"],
                max_new_tokens=job["new_tokens"],
                num_return_sequences=job["group_size"],
                eos_token_id=-1,
                pad_token_id=0,
            ),
            # Prompts are let in only while a part of the pages is free.
            continuous_batching_config=ContinuousBatchingConfig(
                page_size=PAGE, num_blocks=pages + pages // 2 + 8, max_batch_tokens=max(rows, 1024)
            ),
        )
        return sum(len(answer.generated_tokens) for answer in answers.values())

    return draw


PAGE = 32
"""Tokens of a page of the paged cache: whole pages of a prompt are shared by its group."""


def vllm(folder: str, dtype: str) -> Draw:
    """vLLM's own offline engine. Its prefix cache is emptied before each draw, as new weights would empty it."""
    os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "4")
    # By default it keeps a core for a server's front end, which sleeps here.
    os.environ.setdefault("VLLM_CPU_NUM_OF_RESERVED_CPU", "0")
    import vllm as library

    llm = library.LLM(folder, dtype=dtype, max_model_len=2048, max_num_seqs=256, seed=0, disable_log_stats=True)

    def draw(job: Job) -> int:
        llm.reset_prefix_cache()
        params = library.SamplingParams(
            n=job["group_size"],
            temperature=1.0,
            top_p=job["top_p"],
            max_tokens=job["new_tokens"],
            ignore_eos=True,
            detokenize=False,
        )
        prompts = [{"prompt_token_ids": prompt} for prompt in job["prompts"]]
        outputs = llm.generate(prompts, params, use_tqdm=False)
        return sum(len(answer.token_ids) for output in outputs for answer in output.outputs)

    return draw


ENGINES: dict[str, Callable[[str, str], Draw]] = {
    "native": native,
    "torch": torch_only,
    "transformers": transformers,
    "transformers-continuous": transformers_continuous,
    "vllm": vllm,
}


def matrix_rate(dtype: str) -> float:
    """FLOP/s of a square product of 2048, the best of some: what the ceiling is made of."""
    import torch

    a, b = (torch.randn(2048, 2048).to(getattr(torch, dtype)) for _ in range(2))
    seconds = []
    for _ in range(12):
        started = time.perf_counter()
        a @ b
        seconds.append(time.perf_counter() - started)
    return 2 * 2048**3 / min(seconds)


PARTS = {
    "matrix products": ("product", "_linear_pointwise", "_linear"),
    "attention": ("attend",),
    "norms, rotation": ("rms_norm", "rotate"),
    "drawing": ("draw",),
}
"""Functions of the native engine, by what they do; none calls one of another part."""


def parts_of(draw: Draw, job: Job) -> dict[str, float]:
    """Seconds in each part of a draw, and in all; the profiler's own time lies in what is none of them."""
    profile = cProfile.Profile()
    started = time.perf_counter()
    profile.runcall(draw, job)
    seconds = dict.fromkeys(PARTS, 0.0) | {"all": time.perf_counter() - started}
    for entry in profile.getstats():
        code = entry.code
        name = code.rsplit(".", 1)[-1].rstrip(">") if isinstance(code, str) else code.co_name
        ours = isinstance(code, str) or "peerwise" in code.co_filename
        for part, names in PARTS.items():
            # Attention is the kernels' where there are kernels, and inside the plan's otherwise.
            if ours and name in names and (part != "attention" or "attention.py" in getattr(code, "co_filename", "")):
                seconds[part] += entry.totaltime
    return seconds


def main(arguments: Sequence[str]) -> None:
    """Serve one engine until the input ends."""
    engine, folder, dtype, threads = arguments
    # An engine may print; only our lines may reach the reader.
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    if engine != "vllm":
        import torch

        torch.set_num_threads(int(threads))
    draw = ENGINES[engine](folder, dtype)
    print(json.dumps({"ready": True}), file=answers)
    for line in sys.stdin:
        job = json.loads(line)
        if "rate" in job:
            print(json.dumps({"rate": matrix_rate(dtype)}), file=answers)
            continue
        if "rest" in job:
            give_memory_back()
            print(json.dumps({"rested": True}), file=answers)
            continue
        if job.get("profile"):
            print(json.dumps(parts_of(draw, job)), file=answers)
            continue
        started = time.perf_counter()
        tokens = draw(job)
        print(json.dumps({"seconds": time.perf_counter() - started, "tokens": tokens}), file=answers)


if __name__ == "__main__":
    main(sys.argv[1:])
