"""Checkpoints that the papers' authors released, as they are in their layouts, into stock folders."""
