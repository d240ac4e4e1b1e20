"""Predictions with anything finished: a run of TLM, fine-tuning, few-shot learning, or a stock checkpoint."""
