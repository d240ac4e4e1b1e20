"""A tiny network with the architecture that the TLM paper released, and the labels of a released one."""

import torch
from torch import nn
from transformers import BertConfig, BertForMaskedLM

SIZES = {
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 32,
    "max_position_embeddings": 40,
    "layer_norm_eps": 1e-7,
    "vocab_size": 150,
}
SCIERC = ["COMPARE", "CONJUNCTION", "EVALUATE-FOR", "FEATURE-OF", "HYPONYM-OF", "PART-OF", "USED-FOR"]
CLASSES = len(SCIERC)


class Published(BertForMaskedLM):
    """The released network: `cls_layer` on the first token's hidden state, beside BERT's masked-LM head."""

    def __init__(self, config):
        super().__init__(config)
        width = config.hidden_size
        self.cls_layer = nn.Sequential(nn.Linear(width, width), nn.GELU(), nn.Linear(width, CLASSES))

    def both(self, **inputs):
        hidden = self.bert(**inputs).last_hidden_state
        return self.cls_layer(hidden[:, 0]), self.cls(hidden)


def published(seed=0, **values):
    """Build the network with weights as large as a trained model's, so that differences between implementations show."""
    torch.manual_seed(seed)
    model = Published(BertConfig(**{**SIZES, **values})).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += torch.randn_like(parameter) * 0.3
    return model
