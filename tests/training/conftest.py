import pytest


@pytest.fixture(scope="module")
def data(tokenizer, corpus_rows):
    from runs import tokenized

    return tokenized(tokenizer, corpus_rows)
