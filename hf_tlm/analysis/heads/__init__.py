"""Positional and vertical attention heads (TLM, section 4.4.1, Figures 3, C.1 and C.2)."""
