"""The runs behind the commands: TLM, pretraining, fine-tuning, few-shot, grids; each evaluated and aggregated over seeds."""

from typing import TYPE_CHECKING

from hf_tlm.utils.lazy import export_lazily

if TYPE_CHECKING:
    from hf_tlm.runs.arguments import BaselineArguments, ExportArguments, PredictArguments, PredictorArguments
    from hf_tlm.runs.baselines import Baseline, linear_model, majority_class, make_baselines
    from hf_tlm.runs.export.export import Exported, export_onnx
    from hf_tlm.runs.export.page import write_page
    from hf_tlm.runs.few_shot import FewShotArguments, FewShotRun, PromptClassifier, run_few_shot
    from hf_tlm.runs.finetuning import CheckpointArguments, FinetuneArguments, FinetuneRun, check_finetuning, finetune
    from hf_tlm.runs.finetuning.classification import evaluate_checkpoint
    from hf_tlm.runs.grid import GridRun, run_grid
    from hf_tlm.runs.grid_points import Grid, GridArguments
    from hf_tlm.runs.linear import LinearModel
    from hf_tlm.runs.prediction import check_predictable, predict, predict_after
    from hf_tlm.runs.prediction_texts import predict_texts, predictions_to_text
    from hf_tlm.runs.pretrain import PretrainingRun, run_pretraining
    from hf_tlm.runs.records import aggregate, format_score, format_table
    from hf_tlm.runs.score_model import score_models, train_score_model
    from hf_tlm.runs.sharing import PointsError, run_shared
    from hf_tlm.runs.teachers.ask import teacher_scores
    from hf_tlm.runs.tlm import ProtocolError, Run, run_tlm

__getattr__, __dir__, __all__ = export_lazily(__name__)
