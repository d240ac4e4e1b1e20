"""Numbers from arrays and frames, and paths, as used in notebooks: they are converted to Python's types."""

import json

import numpy as np
import pytest
import torch
from datasets import Dataset

from hf_tlm.corpora import load_corpus
from hf_tlm.errors import HfTlmError
from hf_tlm.influence import SelectionArguments
from hf_tlm.objectives import Mlm, TaskLoss, TeacherLoss, WeightedSum
from hf_tlm.retrieval import Bm25Settings, retrieve
from hf_tlm.training import ArgumentsError, ModelArguments, TlmArguments
from hf_tlm.training.run_folder import settings
from support.toys import make_task, sentences

QUIET = {"report_to": "none", "use_cpu": True}


@pytest.mark.parametrize("seeds", [[*np.arange(2)], np.arange(2), range(2), (0, 1)], ids=repr)
def test_numpy_numbers_become_python_numbers(seeds, tmp_path):
    given = {"max_steps": np.int64(4), "rho2": np.float32(0.5), "seed": np.int32(1), "learning_rate": np.float64(0.1)}
    args = TlmArguments(output_dir=str(tmp_path), seeds=seeds, **given, **QUIET)
    plain = TlmArguments(output_dir=str(tmp_path), seeds=[0, 1], max_steps=4, rho2=0.5, seed=1, learning_rate=0.1, **QUIET)
    assert settings(args) == settings(plain) and json.dumps(settings(args)) == json.dumps(settings(plain))
    assert type(args.seed) is type(args.seeds[0]) is int


def test_numpy_numbers_become_python_numbers_in_other_options():
    assert type(ModelArguments(vocab_size=np.int64(100)).vocab_size) is int
    assert type(SelectionArguments(subset="s", fraction=np.float32(0.5)).fraction) is float


def test_torch_numbers_become_python_numbers():
    args = TlmArguments(output_dir="unused", seeds=torch.arange(2), learning_rate=torch.tensor(0.5), **QUIET)
    assert (args.seeds, args.learning_rate) == ([0, 1], 0.5) and type(args.learning_rate) is float
    for weights in (torch.tensor([0.5, 2]), [torch.tensor(0.5), np.float32(2)], torch.nn.Parameter(torch.tensor([0.5, 2]))):
        assert TaskLoss(class_weights=weights).class_weights.tolist() == [0.5, 2]
    assert TaskLoss(torch.tensor(0.5)).label_smoothing == TeacherLoss(torch.tensor(0.5)).temperature == 0.5
    WeightedSum((torch.tensor(1.0), Mlm()), (np.array(2), TaskLoss()))
    with pytest.raises(HfTlmError, match=r"^class_weights: expected a number from 0 to 1e\+06; received -1"):
        TaskLoss(class_weights=torch.tensor([1.0, -1.0]))


def test_paths_become_strings(tmp_path):
    """A path in a run's record could not be written as JSON, and the run would fail after its training."""
    model = ModelArguments(model_config=tmp_path / "bert.json", tokenizer_name=tmp_path)
    assert (model.model_config, model.tokenizer_name) == (str(tmp_path / "bert.json"), str(tmp_path))
    args = TlmArguments(output_dir=tmp_path, teacher=[tmp_path / "a"], teacher_output=tmp_path / "b", **QUIET)
    assert (args.teacher, args.teacher_output) == ([str(tmp_path / "a")], str(tmp_path / "b"))
    json.dumps(settings(args))


def test_number_in_place_of_a_list_is_refused(tmp_path):
    with pytest.raises(ArgumentsError, match=r"^--seeds: expected a list; received 3. Give \[3\]\.$"):
        TlmArguments(output_dir=str(tmp_path), seeds=np.int64(3), **QUIET)


def test_manifest_has_python_numbers(tmp_path):
    corpus = load_corpus(Dataset.from_list([{"text": row["text"]} for row in sentences(40, 9)]))
    options = {"top_k": np.int64(2), "settings": Bm25Settings(k1=np.float32(1), b=np.float32(0.5))}
    subset = retrieve(make_task(), corpus, cache_dir=str(tmp_path / "cache"), **options)
    json.dumps(subset.manifest)
    assert (subset.manifest["top_k"], subset.manifest["k1"]) == (2, 1)
