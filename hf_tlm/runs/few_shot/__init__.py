"""Few-shot learning: prompts for masked LMs, demonstrations in the input, and the protocol over samples of examples."""

from typing import TYPE_CHECKING

from hf_tlm.utils.lazy import export_lazily

if TYPE_CHECKING:
    from hf_tlm.runs.few_shot.arguments import FewShotArguments
    from hf_tlm.runs.few_shot.classifier import PromptClassifier, label_word_logits, load_masked_lm
    from hf_tlm.runs.few_shot.few_shot import FewShotRun, run_few_shot
    from hf_tlm.runs.few_shot.points import Episode, draw_episode
    from hf_tlm.runs.few_shot.prompts import PROMPTS, Prompt, PromptError, prompt_for

__getattr__, __dir__, __all__ = export_lazily(__name__)
