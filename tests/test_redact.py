"""Secrets go, everything else stays."""

from __future__ import annotations

import base64
import json
import os
from pathlib import Path
from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cookbook.redact import Redactor, secret_names

TOKEN = "hf_" + "aB3dE5gH7jK9mN1pQ3sT5vW7yZ"
KEY = "correct/horse+battery"
NONE = Redactor(())


@pytest.fixture
def redactor() -> Redactor:
    return Redactor.from_environ({"HF_TOKEN": TOKEN, "VLLM_API_KEY": KEY, "PATH": "/usr/bin", "HOME": "/root"})


def test_values_of_secret_variables_go_and_their_names_are_said(redactor: Redactor) -> None:
    assert redactor.text(f"token {TOKEN}, key {KEY}.") == "token [redacted:HF_TOKEN], key [redacted:VLLM_API_KEY]."
    assert redactor.text("/usr/bin") == "/usr/bin"


@pytest.mark.parametrize(
    "form",
    [
        KEY,
        json.dumps(KEY),
        quote(KEY, safe=""),
        base64.b64encode(KEY.encode()).decode(),
        f"http://user:{KEY}@host",
        repr([KEY]),
    ],
)
def test_other_spellings_of_a_value_go_too(redactor: Redactor, form: str) -> None:
    clean = redactor.text(f"before {form} after")
    assert KEY not in clean
    assert form not in clean
    assert clean.startswith("before ")
    assert clean.endswith(" after")


@pytest.mark.parametrize(
    "text",
    [
        f"HF_TOKEN={TOKEN}",
        "sk-abcdefghij0123456789",
        "nvapi-abcdefghij0123456789",
        "ghp_abcdefghij0123456789abcd",
        "github_pat_abcdefghij0123456789",
        "AKIA0123456789ABCDEF",
        "Authorization: Bearer abc.def-ghi",
        "vllm serve m --api-key zq9xw --port 1",
        "--api-key=zq9xw",
        "non-default args: {'api_key': ['zq9xw'], 'port': 1}",
        '{"hf_token": "zq9xw"}',
        "password='zq9xw'",
        "GET /v1/models?api_key=abcd1234efgh&x=1",
        "https://user:zq9xw@index.example/simple",
    ],
)
def test_what_looks_like_a_secret_goes(text: str) -> None:
    clean = NONE.text(text)
    assert "[redacted]" in clean
    for word in ("zq9xw", "0123456789", "abc.def-ghi", "abcd1234efgh", TOKEN):
        assert word not in clean
    assert NONE.text(clean) == clean


@pytest.mark.parametrize(
    "text",
    [
        "max_tokens=64 --max-num-batched-tokens 4096 tokens/s: 12.5",
        "api_key=client.api_key(), timeout=600",
        'OpenAI(api_key=os.environ["VLLM_API_KEY"])',
        "api_key='EMPTY' api_key=None",
        '--header "Authorization: Bearer $VLLM_API_KEY"',
        "tokenizer='/models/small', tokenizer_mode=auto, skip_tokenizer_init=False",
        "http://127.0.0.1:8000/v1",
        "prefix_cache_hits_total 2176",
        "secret: never a parameter",
    ],
)
def test_what_only_sounds_like_one_stays(text: str) -> None:
    assert NONE.text(text) == text


def test_a_real_log_stays_as_it_is() -> None:
    log = (Path(__file__).parent / "launch" / "samples" / "healthy.log").read_text()
    assert NONE.text(log) == log


def test_which_variables_are_secret() -> None:
    environ = dict.fromkeys(
        ["HF_TOKEN", "VLLM_API_KEY", "AWS_SECRET_ACCESS_KEY", "MY_PASSWORD", "TOKENIZERS_PARALLELISM", "SSH_AUTH_SOCK"],
        "x",
    )
    assert set(secret_names(environ)) == {"HF_TOKEN", "VLLM_API_KEY", "AWS_SECRET_ACCESS_KEY", "MY_PASSWORD"}


def test_data_is_cleaned_at_every_depth(redactor: Redactor) -> None:
    data = {"a": [{"b": TOKEN}, 3, None, True], KEY: "key"}
    clean = redactor.value(data)
    assert TOKEN not in json.dumps(clean)
    assert KEY not in json.dumps(clean)
    assert clean["a"][1:] == [3, None, True]


def test_a_short_value_is_not_searched_for() -> None:
    assert Redactor([("MY_TOKEN", "on")]).text("on and on") == "on and on"


@given(st.text(alphabet=st.characters(codec="utf-8"), min_size=6, max_size=40), st.text(max_size=40))
def test_a_known_value_never_survives(value: str, around: str) -> None:
    redactor = Redactor([("S_TOKEN", value)])
    clean = redactor.text(f"{around}{value}{around}")
    assert value not in clean.replace("[redacted:S_TOKEN]", "\0").replace("[redacted]", "\0")


def test_the_environment_itself_can_be_read() -> None:
    assert Redactor.from_environ(os.environ).text("plain") == "plain"
