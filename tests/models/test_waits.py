"""How often a forward and backward pass synchronises with the GPU: where the CPU needs computed values."""

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import AutoConfig

from hf_tlm.data import TlmCollator
from hf_tlm.models import GeneratorDiscriminator, TlmModel, generator_config
from hf_tlm.models.cpu_kernels import set_dropout
from hf_tlm.objectives import CorrectiveLm, Mlm, ReplacedTokenDetection, TaskLoss, WeightedSum
from support.token_texts import texts
from support.toys import TINY_CONFIGS

_aten = torch.ops.aten


class _Waits(TorchDispatchMode):
    """Records operators whose output shape, or whose Python number, depends on values in a tensor."""

    def __init__(self):
        super().__init__()
        self.found = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        by_mask = func in (_aten.index.Tensor, _aten.index_put_.default, _aten._index_put_impl_.default) and any(
            index is not None and index.dtype == torch.bool for index in args[1]
        )
        if by_mask or func in (_aten.nonzero.default, _aten.masked_select.default, _aten._local_scalar_dense.default):
            self.found.append(func)
        return func(*args, **(kwargs or {}))


def model_of(model_type, **options):
    config = AutoConfig.for_model(model_type, **TINY_CONFIGS[model_type])
    if model_type == "bert":
        return TlmModel.from_config(config)
    model = GeneratorDiscriminator.from_config(config, generator_config(config, 1, 1), **options)
    model.lm_loss = CorrectiveLm().lm_loss
    return model


@pytest.mark.parametrize("task", [True, False])
@pytest.mark.parametrize(
    "model_type,objective,options,waits",
    [
        # For the positions of the masked tokens.
        ("bert", Mlm(), {}, 1),
        # Also for the real tokens.
        ("electra", WeightedSum((1.0, Mlm()), (50.0, ReplacedTokenDetection())), {}, 2),
        # Also for the masked tokens among the real ones, for the loss and for its accuracies.
        ("cocolm", WeightedSum((1.0, Mlm()), (1.0, CorrectiveLm())), {"heads": "clm", "apart": True}, 4),
    ],
)
def test_number_of_synchronisations_of_a_pass(model_type, objective, options, waits, task, tokenizer):
    """With packed rows."""
    model = model_of(model_type, **options).train()
    set_dropout(model, 0.0)  # On a CPU each dropout draws a seed, which is a Python number.
    batch = TlmCollator(tokenizer, row_length=40, replacing=model_type != "bert", seed=1)(texts(task, pairs=True))
    if task:
        objective = WeightedSum((1.0, objective), (1.0, TaskLoss(class_weights=[1.0, 2.0, 1.0])))
    with _Waits() as seen:
        objective(model(**batch), batch)["loss"].backward()
    assert len(seen.found) == waits, seen.found
