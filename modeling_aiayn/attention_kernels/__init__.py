"""Attention in blocks, for CPUs and in Triton."""
