"""Compiled functions for CPUs with AVX-512 BF16: products, attention, what stands between, log-probs, AdamW in 8 bits.

Knows tensors, and nothing else of ours.
"""

from peerwise.kernels.build import float32_kernels, kernels_for, product_kernels
from peerwise.kernels.library import BLOCK, LANES, CodeTable, Kernels

__all__ = ["BLOCK", "LANES", "CodeTable", "Kernels", "float32_kernels", "kernels_for", "product_kernels"]
