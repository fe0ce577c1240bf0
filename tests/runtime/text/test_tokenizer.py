"""The tokenizer against the reference's ids, and tokenizer files that must be refused."""

from __future__ import annotations

import copy
import hashlib
import json
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ninfer_format.errors import ArtifactError
from ninfer_runtime.errors import RequestError, RequestErrorKind
from ninfer_runtime.text.tokenizer import Tokenizer


@pytest.fixture(scope="module")
def document(resources):
    return json.loads(resources["tokenizer.json"])


def test_a_book_has_the_ids_of_the_reference(tokenizer, tiny_model):
    expected = json.loads((tiny_model / "goldens" / "perplexity.json").read_text())
    text = (tiny_model / "heldout.txt").read_text("utf-8")
    ids = tokenizer.encode(text)
    assert len(ids) == expected["tokens"]
    assert ids[: len(expected["first_ids"])] == expected["first_ids"]
    digest = hashlib.sha256(np.array(ids, "<i4").tobytes()).hexdigest()
    assert digest == expected["ids_sha256_int32"]
    assert b"".join(map(tokenizer.token_bytes, ids)).decode() == text


def test_ordinary_text_never_has_control_tokens(tokenizer):
    spellings = "".join(token.content for token in tokenizer.added_tokens)
    added = {token.id for token in tokenizer.added_tokens}
    ids = tokenizer.encode(spellings)
    assert not added.intersection(ids)
    assert b"".join(map(tokenizer.token_bytes, ids)).decode() == spellings


def test_controls_are_recognised_when_asked_for(tokenizer):
    ids = tokenizer.encode_with_controls("<|im_start|>user\nhi<|im_end|>")
    assert ids == [4084, *tokenizer.encode("user\nhi"), 4085]


def test_text_between_controls_is_cut_exactly(tokenizer):
    assert tokenizer.split_controls("a<think><|im_end|><|im_end|b") == [
        "a",
        4090,
        4085,
        "<|im_end|b",
    ]
    assert tokenizer.split_controls("") == []


@settings(deadline=None)
@given(text=st.text(st.characters(codec="ascii"), max_size=60))
def test_ascii_round_trips(tokenizer, text):
    assert b"".join(map(tokenizer.token_bytes, tokenizer.encode(text))).decode() == text


def test_the_longer_of_two_spellings_wins(document):
    changed = copy.deepcopy(document)
    changed["added_tokens"].append({"id": 4096, "content": "<think>>", "special": False})
    tokenizer = Tokenizer(changed, {})
    assert tokenizer.encode_with_controls("<think>><think>") == [4096, 4090]


def test_special_tokens_are_those_that_the_file_marks(tokenizer):
    special = [t.content for t in tokenizer.added_tokens if tokenizer.is_special(t.id)]
    assert special[0] == "<|endoftext|>"
    assert all(content.startswith("<|") for content in special)
    assert not tokenizer.is_special(4090)
    assert not tokenizer.is_special(0)
    assert tokenizer.token_id("<think>") == 4090
    assert tokenizer.token_id("hello") is None


def test_ids_are_dense(tokenizer):
    assert tokenizer.public_tokens == 4096
    assert all(tokenizer.token_bytes(token_id) for token_id in range(4096))
    for token_id in (-1, 4096):
        with pytest.raises(IndexError):
            tokenizer.token_bytes(token_id)


def test_a_lone_surrogate_is_refused_as_a_prompt(tokenizer):
    with pytest.raises(RequestError, match=r"lone surrogate '\\ud83d'") as caught:
        tokenizer.encode("a\ud83d")
    assert caught.value.kind == RequestErrorKind.INVALID_PROMPT


def test_added_tokens_of_the_configuration_count(document):
    entry = {"content": "<|audio|>", "special": True}
    tokenizer = Tokenizer(document, {"added_tokens_decoder": {"4096": entry}})
    assert tokenizer.public_tokens == 4097
    assert tokenizer.encode_with_controls("<|audio|>") == [4096]


def set_path(document, path, value):
    *parents, last = path
    for name in parents:
        document = document[name]
    document[last] = value


@pytest.mark.parametrize(
    ("path", "value", "named"),
    [
        (("model", "type"), "Unigram", "model.type"),
        (("model", "vocab"), [], "vocab"),
        (("model", "ignore_merges"), True, "ignore_merges"),
        (("model", "dropout"), 0.1, "dropout"),
        (("model", "end_of_word_suffix"), "</w>", "end_of_word_suffix"),
        (("model", "merges"), [["no", "such"]], "tokenizer.json"),
        (("model", "vocab", "!"), "0", "not an integer"),
        (("model", "vocab", "!"), 5000, "without gaps"),
        (("model", "vocab", "日"), 4096, "does not spell a byte"),
        (("model", "vocab", "<think>"), 4096, "two ids"),
        (("normalizer",), {"type": "NFKC"}, "normalizer"),
        (("decoder",), {"type": "WordPiece"}, "decoder"),
        (("post_processor",), {"type": "TemplateProcessing"}, "post_processor"),
        (("pre_tokenizer",), None, "pre_tokenizer"),
        (("pre_tokenizer", "pretokenizers", 0, "behavior"), "Removed", "isolate"),
        (("pre_tokenizer", "pretokenizers", 1, "add_prefix_space"), True, "space"),
        (("added_tokens", 0, "lstrip"), True, "lstrip"),
        (("added_tokens", 0, "content"), "", "4083"),
        (("added_tokens", 0), "x", "array of objects"),
        (("added_tokens", 0, "id"), "4083", "integer id"),
        (("added_tokens", 1, "id"), 4083, "two different ways"),
    ],
)
def test_a_tokenizer_that_would_give_other_ids_is_refused(document, path, value, named):
    changed = copy.deepcopy(document)
    set_path(changed, path, value)
    with pytest.raises(ArtifactError, match=named):
        Tokenizer(changed, {})


def test_files_that_contradict_each_other_are_refused(document):
    entry = {"content": "<|im_end|>", "special": False}
    with pytest.raises(ArtifactError, match="4085 is described in two different ways"):
        Tokenizer(document, {"added_tokens_decoder": {"4085": entry}})
    with pytest.raises(ArtifactError, match="ids as keys"):
        Tokenizer(document, {"added_tokens_decoder": {"x": entry}})
    with pytest.raises(ArtifactError, match="must be an object"):
        Tokenizer(document, {"added_tokens_decoder": [entry]})
    with pytest.raises(ArtifactError, match="needs an integer id and a content"):
        Tokenizer(document, {"added_tokens_decoder": {"4085": None}})


@pytest.mark.parametrize("data", [b"", b"[]", b"\xff", b"{" * 100_000])
def test_files_that_are_no_objects_are_refused(data):
    with pytest.raises(ArtifactError, match=r"tokenizer\.json"):
        Tokenizer.from_resources(data)


def test_an_added_token_in_the_vocabulary_is_still_no_ordinary_text(document):
    changed = copy.deepcopy(document)
    changed["model"]["vocab"]["<think>"] = 4090
    tokenizer = Tokenizer(changed, {})
    assert 4090 not in tokenizer.encode("<think>")


def test_other_threads_run_while_a_long_text_is_encoded(tokenizer):
    text = "The sea is wide and old. " * 20_000
    with ThreadPoolExecutor(1) as pool:
        encoding = pool.submit(tokenizer.encode, text)
        turns = 0
        while not encoding.done():
            time.sleep(0.001)
            turns += 1
    assert tokenizer.encode(text) == encoding.result()
    assert turns > 10
