"""Secrets are taken out in every form that they turn up in, and nothing else is."""

from __future__ import annotations

import base64
import json
import time
from pathlib import Path
from urllib.parse import quote, quote_plus

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cookbook.redact import Redactor, secret_names

SECRET = 'p4ss/w0rd+"zwei"=&ä'
NOTHING = Redactor.from_environ({})
KNOWN = Redactor.from_environ({"VLLM_API_KEY": SECRET})
HEALTHY = Path(__file__).parent / "launch" / "samples" / "healthy.log"


@pytest.mark.parametrize(
    "name",
    [
        "HF_TOKEN",
        "HUGGING_FACE_HUB_TOKEN",
        "OPENAI_API_KEY",
        "VLLM_API_KEY",
        "S3_ACCESS_KEY_ID",
        "S3_SECRET_ACCESS_KEY",
        "PGPASSWORD",
        "MYSQL_PWD",
        "DB_PASSWD",
        "GOOGLE_CREDENTIALS",
        "CLIENT_SECRET",
        "MYTOKEN",
        "wandb_api_key",
        "SIGNING_KEY",
    ],
)
def test_a_name_that_says_secret_is_one(name: str) -> None:
    assert secret_names({name: "0123456789"}) == (name,)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("TOKENIZERS_PARALLELISM", "disabled"),
        ("VLLM_MAX_TOKENS_PER_EXPERT_FP4_MOE", "163840"),
        ("VLLM_MULTI_STREAM_GEMM_TOKEN_THRESHOLD", "102400"),
        ("HF_TOKEN_PATH", "/models/token"),
        ("SSH_AUTH_SOCK", "/tmp/agent"),
        ("GPG_KEY", "0123456789"),
        ("PATH", "/usr/bin"),
        ("KEYBOARD", "german"),
    ],
)
def test_a_name_that_only_resembles_one_is_none(name: str, value: str) -> None:
    assert secret_names({name: value}) == ()


FORMS = {
    "plain": SECRET,
    "json": json.dumps(SECRET),
    "json_unescaped": json.dumps(SECRET, ensure_ascii=False),
    "json_in_json": json.dumps(json.dumps({"k": SECRET})),
    "python": repr(SECRET),
    "url": quote(SECRET, safe=""),
    "url_path": quote(SECRET),
    "query": quote_plus(SECRET),
    "url_lower": quote(SECRET, safe="").lower(),
    "base64": base64.b64encode(SECRET.encode()).decode(),
    "base64_url": base64.urlsafe_b64encode(SECRET.encode()).decode(),
    "basic_auth": base64.b64encode(b"user:" + SECRET.encode()).decode(),
    "basic_auth_1": base64.b64encode(b"users:" + SECRET.encode() + b"\n").decode(),
    "basic_auth_2": base64.b64encode(b"me:" + SECRET.encode() + b"??").decode(),
}


@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
def test_a_known_value_is_found_in_every_form(form: str) -> None:
    clean = KNOWN.text(f"before {form} after")
    assert "[redacted:VLLM_API_KEY]" in clean
    assert clean.startswith("before ")
    assert clean.endswith(" after")
    assert "zwei" not in clean.replace(" ", "")


@given(
    secret=st.text(st.characters(codec="ascii", categories=["L", "N", "P"]), min_size=12, max_size=60), around=st.text()
)
def test_no_known_value_survives(secret: str, around: str) -> None:
    redactor = Redactor([("KEY", secret)])
    if secret.lower() in "[redacted:key]":
        return
    for form in (secret, json.dumps(secret), quote(secret, safe=""), base64.b64encode(secret.encode()).decode()):
        assert form not in redactor.text(f"{around} {form} {around}")


@given(text=st.text())
def test_a_clean_text_stays_as_it_is(text: str) -> None:
    once = KNOWN.text(text)
    assert KNOWN.text(once) == once


def test_each_line_of_a_private_key_is_known() -> None:
    lines = ["QmFzZTY0TGluZU51bWJlck9uZQ", "QmFzZTY0TGluZU51bWJlclR3bw"]
    redactor = Redactor.from_environ({"SSH_PRIVATE_KEY": "\n".join(["-----BEGIN KEY-----", *lines])})
    assert redactor.text(f"x {lines[1]} x") == "x [redacted:SSH_PRIVATE_KEY] x"


def test_a_short_value_is_found_only_where_secrets_stand() -> None:
    redactor = Redactor.from_environ({"VLLM_API_KEY": "abc1"})
    assert redactor.text("abc1 of abc1") == "abc1 of abc1"
    assert redactor.text("--api-key abc1 --port 8000") == "--api-key [redacted] --port 8000"
    assert redactor.text("{'api_key': ['abc1'], 'port': 8000}") == "{'api_key': ['[redacted]'], 'port': 8000}"


LONG = "Zx9" * 12


@pytest.mark.parametrize(
    ("text", "clean"),
    [
        (f"token hf_{LONG}.", "token [redacted]."),
        (f"sk-proj-{LONG}", "[redacted]"),
        (f"nvapi-{LONG}", "[redacted]"),
        (f"ghp_{LONG}", "[redacted]"),
        (f"github_pat_{LONG}_{LONG}", "[redacted]"),
        ("AKIAIOSFODNN7EXAMPLE", "[redacted]"),
        (f"eyJhbGciOiJIUzI1NiJ9.eyJ{LONG}.{LONG}", "[redacted]"),
        ("-----BEGIN RSA PRIVATE KEY-----\nabc\n-----END RSA PRIVATE KEY-----", "[redacted]"),
        ("Authorization: Bearer token-abc123", "Authorization: Bearer [redacted]"),
        ('-H "Authorization: Basic dXNlcjpwYXNz"', '-H "Authorization: Basic [redacted]"'),
        ("vllm serve m --api-key=s3cr3t --port 1", "vllm serve m --api-key=[redacted] --port 1"),
        ("--api-key first1 second2 --port 1", "--api-key [redacted] [redacted] --port 1"),
        ("['--api-key', 'pa$$w0rd', '--port', '1']", "['--api-key', '[redacted]', '--port', '1']"),
        (
            "'hf_token': 'x', 'api_key': ['a', 'b'], 'n': 1",
            "'hf_token': '[redacted]', 'api_key': ['[redacted]', '[redacted]'], 'n': 1",
        ),
        ('{"api_key": "s3cr3t", "n": 1}', '{"api_key": "[redacted]", "n": 1}'),
        (r"{\"api_key\": \"s3cr3t\"}", r"{\"api_key\": \"[redacted]\"}"),
        ("GET /x?api_key=s3cr3t&n=1", "GET /x?api_key=[redacted]&n=1"),
        ("HF_TOKEN=s3cr3t-value vllm serve", "HF_TOKEN=[redacted] vllm serve"),
        ("https://me:s3cr3t@hub.example/x", "https://me:[redacted]@hub.example/x"),
        (
            "non-default args: {'api_key': ['zq9xw'], 'port': 1}",
            "non-default args: {'api_key': ['[redacted]'], 'port': 1}",
        ),
        ("password='zq9\\'xw' --port 1", "password='[redacted]' --port 1"),
        ("Authorization: Bearer abc.def-ghi", "Authorization: Bearer [redacted]"),
        ("redis://:s3cr3t@cache:6379", "redis://:[redacted]@cache:6379"),
    ],
)
def test_what_looks_like_a_secret_goes(text: str, clean: str) -> None:
    assert NOTHING.text(text) == clean
    assert NOTHING.text(clean) == clean


@pytest.mark.parametrize(
    "text",
    [
        "max_tokens=64, --max-num-batched-tokens 4096, 1234.5 tokens/s",
        "GPU KV cache size: 2,600,000 tokens, Maximum concurrency for 262,144 tokens per request: 9.92x",
        "'bos_token': '<|im_start|>', 'eos_token': '<|im_end|>', eos_token_id=163586, pad_token: [PAD]",
        "tokenizer='moonshotai/Kimi-K3.1-Pro', tokenizer_mode=auto, tokenizer_revision=None",
        "non-default args: {'api_key': None, 'hf_token': None, 'port': 8000}",
        'client = OpenAI(base_url=f"{run.base_url}/v1", api_key=client.api_key())',
        'client = OpenAI(api_key=os.environ["VLLM_API_KEY"])',
        "OpenAI(api_key=api_key, timeout=600)",
        'OpenAI(api_key="EMPTY")',
        'curl -H "Authorization: Bearer $VLLM_API_KEY"',
        "vllm serve m --api-key $VLLM_API_KEY",
        'vllm serve m --api-key "${VLLM_API_KEY}"',
        "The flag --api-key does not protect /metrics. Use `--api-key` for /v1.",
        "It asks for Bearer authentication.",
        "def f(api_key: str, password: str | None = None) -> None:",
        "http://127.0.0.1:8000/v1 mails me@example.org",
        "key: value, key_size=4096, --kv-cache-dtype fp8, num_key_value_heads=8",
        "attention mask-1234567890123456 risk-free task-0123456789abcdef0",
        "api_key=",
        "secret: never a parameter",
        "api_key='EMPTY' api_key=None",
        "prefix_cache_hits_total 2176",
        '{"api_key": "", "model": "kimi"}',
    ],
)
def test_what_is_none_stays(text: str) -> None:
    assert NOTHING.text(text) == text


def test_a_real_log_stays_as_it_is() -> None:
    text = HEALTHY.read_text()
    assert NOTHING.text(text) == text


def test_data_is_cleaned_in_keys_values_and_lists() -> None:
    data = {f"x {SECRET}": [SECRET, 1, None, True, {"deep": (f"a {SECRET}",)}], "n": 1.5}
    mark = "[redacted:VLLM_API_KEY]"
    assert KNOWN.value(data) == {f"x {mark}": [mark, 1, None, True, {"deep": [f"a {mark}"]}], "n": 1.5}


def test_the_key_or_the_flag_in_front_tells_a_secret_in_data() -> None:
    data = {"api_key": "s3cr3t", "OPENAI_API_KEY": "abc", "hf_token": None, "argv": ["--api-key", "k1", "--port", "1"]}
    assert NOTHING.value(data) == {
        "api_key": "[redacted]",
        "OPENAI_API_KEY": "[redacted]",
        "hf_token": None,
        "argv": ["--api-key", "[redacted]", "--port", "1"],
    }
    assert NOTHING.value({"api_key": ["a", "$VLLM_API_KEY"]}) == {"api_key": ["[redacted]", "$VLLM_API_KEY"]}
    assert NOTHING.value({"max_tokens": "64", "tokenizer": "x"}) == {"max_tokens": "64", "tokenizer": "x"}


@pytest.mark.parametrize("text", ["a" * 2**18, "api_key" * 2**15, "A/" * 2**17, "://" * 2**16, "--api-key " * 2**14])
def test_a_long_line_takes_no_time(text: str) -> None:
    began = time.process_time()
    KNOWN.text(text)
    assert time.process_time() - began < 3
