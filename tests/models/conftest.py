import pytest


@pytest.fixture
def modernbert_in_float64(monkeypatch):
    """Make stock ModernBERT comparable in float64.

    It rotates queries and keys, and computes the softmax of eager attention, in float32 whatever the dtype of the
    model. Llama's rotation and BERT's attention are the same without the casts.
    """
    from transformers.models.bert.modeling_bert import eager_attention_forward
    from transformers.models.llama.modeling_llama import apply_rotary_pos_emb
    from transformers.models.modernbert import modeling_modernbert

    monkeypatch.setattr(modeling_modernbert, "apply_rotary_pos_emb", apply_rotary_pos_emb)
    monkeypatch.setattr(modeling_modernbert, "eager_attention_forward", eager_attention_forward)
