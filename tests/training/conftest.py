import pytest


@pytest.fixture(scope="module")
def data(tokenizer, corpus_rows):
    from support.training_runs import tokenized

    return tokenized(tokenizer, corpus_rows)
