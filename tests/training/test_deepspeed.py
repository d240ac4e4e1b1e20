"""DeepSpeed is refused, whichever way it is requested."""

import pytest

from hf_tlm.runs.few_shot import FewShotArguments
from hf_tlm.runs.finetuning import FinetuneArguments
from hf_tlm.training import ArgumentsError, PretrainArguments, TlmArguments

QUIET = {"report_to": "none", "use_cpu": True}


@pytest.mark.parametrize("cls", [TlmArguments, PretrainArguments, FinetuneArguments, FewShotArguments])
def test_deepspeed_is_refused(tmp_path, monkeypatch, cls):
    with pytest.raises(ArgumentsError, match="DeepSpeed is not supported; received deepspeed 'zero.json'.*accelerate/fsdp"):
        cls(output_dir=str(tmp_path), deepspeed="zero.json", **QUIET)
    monkeypatch.setenv("ACCELERATE_USE_DEEPSPEED", "true")
    with pytest.raises(ArgumentsError, match="received accelerate's distributed_type DEEPSPEED.*accelerate/ddp"):
        cls(output_dir=str(tmp_path), **QUIET)
