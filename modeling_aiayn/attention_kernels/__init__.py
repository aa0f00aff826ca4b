"""Blockwise attention: for CPUs, and in Triton for GPUs."""
