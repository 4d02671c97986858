"""Compiled functions for bfloat16 on CPUs with AVX-512 BF16: products, attention, what stands between, log-probs.

Knows tensors, and nothing else of ours.
"""

from peerwise.kernels.build import kernels_for, product_kernels
from peerwise.kernels.library import BLOCK, LANES, Kernels

__all__ = ["BLOCK", "LANES", "Kernels", "kernels_for", "product_kernels"]
