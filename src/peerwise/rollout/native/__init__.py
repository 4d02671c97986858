"""Our own engine: each prompt is computed once for all its answers, answers leave and enter as they end.

engine.py      the loop: admit, decode, draw, retire
scheduler.py   which answers are being decoded, which wait (no tensors)
cache.py       keys and values: prompts by group, answers by slot
attention.py   the attention plans of prefill and of a decode step
graphs.py      decode steps of fixed size, recorded as CUDA graphs
sampler.py     from logits and one uniform number to a token and its log-prob
"""
