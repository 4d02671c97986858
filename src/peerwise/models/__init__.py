"""A Hugging Face causal model behind a few verbs: load, run packed tokens through it, adapt, save.

Knows nothing about problems, rewards, sampling policy or training loops.
"""
