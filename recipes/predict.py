r"""Predict with a finished model: read a table of texts, and write the same table with predictions and probabilities.

    hf-tlm predict --model_name_or_path runs/tickets --data new.csv --output answered.csv
    hf-tlm predict --model_name_or_path owner/name --data new.parquet --output answered.parquet --text_column body
    hf-tlm predict --model_name_or_path runs/tickets --text 'it broke after a week' 'it arrived today'

On several devices: `accelerate launch recipes/predict.py ...`, or --num_processes. The model is the folder of a finished
run (train_tlm, finetune, few_shot; adapters too) or of a baseline, a stock checkpoint of transformers with a task's head,
or one of these on the Hub. Its folder says which columns it reads and at which length texts are truncated.
"""

from __future__ import annotations

from hf_tlm import runs
from hf_tlm.config import parse, run
from hf_tlm.runs import PredictorArguments
from hf_tlm.runs.arguments import check_models
from hf_tlm.utils.process import is_first_process


def main() -> None:
    # 1. Arguments: YAML files, then the command line.
    (args,) = parse(PredictorArguments, recipe="predict", description=__doc__)
    check_models(args.model_name_or_path)

    # 2. Predictions of a file, chunk by chunk; they are written atomically. Or of some texts.
    if args.data is not None:
        path = runs.predict(args.model_name_or_path, args.data, args.output, **args.options())
        result = f"predictions  {path}"
    else:
        predictions = runs.predict_texts(args.model_name_or_path, args.text, **args.options())
        result = runs.predictions_to_text(args.text, predictions)

    # 3. Where the predictions are, or the classes of the texts.
    if is_first_process():
        print(result)


if __name__ == "__main__":
    run(main)
