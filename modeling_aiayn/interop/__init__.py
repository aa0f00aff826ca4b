"""Weights in from other systems, engines out."""
