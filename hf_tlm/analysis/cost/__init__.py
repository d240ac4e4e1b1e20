"""Score against cost (TLM, Figure 1)."""
