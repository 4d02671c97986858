"""A Hugging Face causal model behind a few verbs: load, run packed tokens through it, adapt, save.

Knows nothing about problems, rewards, sampling policy or training loops.
"""

import logging

# peft imports bitsandbytes wherever it is installed, and that says on stderr that it found no kernels for a path which
# `quantized` closes.
logging.getLogger("bitsandbytes.backends.cpu").setLevel(logging.ERROR)
