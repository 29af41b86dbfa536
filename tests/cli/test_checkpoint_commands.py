"""`models`, `inspect` and `pull` on the command line: data on standard output, problems in lines of their own."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from tests.fakes.micro import write_micro
from tests.weights.layout_writers import THIRD, config_of, fp8, plain, write

import gapless
from gapless.cli.main import main
from gapless.errors import InvalidCheckpoint

GLINT = Path(gapless.__file__).parent / "assets" / "glint" / "tokenizer.json"


@pytest.fixture
def no_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GAPLESS_CACHE", str(tmp_path / "empty"))


@pytest.mark.usefixtures("no_cache", "bundled")
def test_models_lists_names_sizes_licences_and_what_they_mean(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["models"]) == 0
    out = capsys.readouterr().out
    lines = {line.split()[0]: line for line in out.splitlines()}
    for name, size, licence in (
        ("vikhyatk/moondream2", "3.85 GB", "Apache-2.0"),
        ("vikhyatk/moondream2@2025-01-09", "3.85 GB", "Apache-2.0"),
        ("moondream/moondream3-preview", "18.54 GB", "BSL 1.1"),
        ("moondream/moondream3.1-9B-A2B", "10.51 GB", "BSL 1.1"),
    ):
        assert size in lines[name] and licence in lines[name] and "not here: gapless pull" in lines[name]
    assert "reasoning" in lines["vikhyatk/moondream2"]
    assert "reasoning" not in lines["vikhyatk/moondream2@2025-01-09"]
    assert "segment" in lines["moondream/moondream3-preview"]
    assert all(
        "gaze, chat" in lines[name] for name in ("vikhyatk/moondream2@2025-01-09", "moondream/moondream3-preview")
    )
    assert out.count("Business Source License 1.1") == 2
    assert "read the licence at https://huggingface.co/moondream/moondream3-preview" in out


@pytest.mark.usefixtures("no_cache")
def test_inspect_of_a_whole_checkpoint(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = write_micro(tmp_path / "micro")
    assert main(["inspect", str(folder), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    tensors = load_file(folder / "model.safetensors")
    count = sum(tensor.numel() for tensor in tensors.values())
    assert (found["layout"], found["revision"]) == ("hugging face", "2025-06-21")
    assert (found["tensors"], found["parameters"], found["bytes"]) == (len(tensors), count, 4 * count)
    assert found["memory"] == {"float32": 4 * count, "bfloat16": 2 * count, "float16": 2 * count}
    assert (found["dtypes"], found["problems"]) == ({"F32": len(tensors)}, [])
    text = found["dimensions"]["text"]
    assert text["dim"] == 64
    cache = found["kv_cache"]["float16"]
    assert cache["token"] == 2 * 2 * 64 * text["n_layers"] and cache["context"] == text["max_context"]
    pages = -(-cache["context"] // 16) + 1  # a picture's block ends within a page
    assert cache["rows"] == {str(n): (n * pages + 1) * 16 * cache["token"] for n in (1, 8, 16, 32, 64)}
    assert found["kv_cache"]["float32"]["token"] == 2 * cache["token"]
    assert found["token_tables"] == 65 * (2 * found["dimensions"]["text"]["vocab_size"] + 24) + 2**26 + 2**17
    whole = {n: 2 * count + size + found["token_tables"] for n, size in cache["rows"].items()}
    assert (found["kv_dtype"], found["in_all"]["float16"]) == ("auto", whole)
    assert main(["inspect", str(folder), "--json", "--kv-dtype", "fp8"]) == 0
    half = json.loads(capsys.readouterr().out)
    assert half["kv_cache"] == found["kv_cache"] and half["kv_cache"]["fp8"]["token"] == cache["token"] // 2
    assert half["in_all"]["bfloat16"] == {n: whole[n] - size // 2 for n, size in cache["rows"].items()}
    assert main(["inspect", str(folder), "--kv-dtype", "fp8"]) == 0
    assert (
        f"all, bfloat16, KV cache in fp8  {half['in_all']['bfloat16']['1'] / 1e9:.3f} GB for 1"
        in capsys.readouterr().out
    )
    assert main(["inspect", "glint/moon", "--kv-dtype", "fp8"]) == 2
    assert "glint/moon is an adapter" in capsys.readouterr().err
    assert main(["inspect", str(folder)]) == 0
    out, err = capsys.readouterr()
    assert "hugging face" in out and "weights take" in out and "KV cache, bfloat16" in out and err == ""
    assert out.startswith("folder ") and " None" not in out


@pytest.mark.usefixtures("no_cache")
def test_inspect_of_fp8_experts(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tensors = plain(THIRD)
    folder = write(tmp_path / "third", fp8(tensors)[0], config_of(THIRD))
    assert main(["inspect", str(folder), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["layout"], found["dtypes"]["F8_E4M3"]) == ("internal", 4)
    experts = sum(t.numel() for name, t in tensors.items() if t.ndim == 3 and ".mlp.fc" in name)
    scales = sum(t.shape[0] * t.shape[1] for name, t in tensors.items() if t.ndim == 3 and ".mlp.fc" in name)
    others = sum(tensor.numel() for tensor in tensors.values()) - experts
    assert found["parameters"] == others + experts and experts > 0
    assert found["memory"] == {
        kind: size * others + experts + 4 * scales for kind, size in (("float32", 4), ("bfloat16", 2), ("float16", 2))
    }
    assert "BSL" not in found["licence"] and "Business Source" in found["licence"]


@pytest.mark.usefixtures("no_cache")
def test_inspect_tells_all_that_loading_would_refuse(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = write_micro(tmp_path / "micro")
    tensors = load_file(folder / "model.safetensors")
    del tensors["model.text.wte"]
    tensors["model.extra"] = tensors["model.text.post_ln.bias"].clone()
    tensors["model.text.post_ln.bias"] = tensors["model.text.post_ln.bias"][:5].clone()
    save_file(tensors, folder / "model.safetensors")
    (folder / "tokenizer.json").unlink()
    assert main(["inspect", str(folder), "--json"]) == 1
    assert json.loads(capsys.readouterr().out)["problems"] == [
        "missing tokenizer.json. Put the tokenizer the weights were trained with beside them (Moondream 2 of "
        "2025-06-21 and later: tokenizer.json of moondream/starmie-v1).",
        "missing text.wte [128, 64]",
        "unexpected model.extra",
        "model.text.post_ln.bias has shape [5], expected [64]",
    ]
    assert main(["inspect", str(folder)]) == 1
    assert capsys.readouterr().err.count("\n") == 4


@pytest.mark.usefixtures("no_cache")
@pytest.mark.parametrize(
    ("spoil", "words"),
    [("config.json", "lacks config.json"), ("model.safetensors", "lacks model.safetensors"), ("", "not a complete")],
)
def test_inspect_of_what_cannot_be_read(
    spoil: str, words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = write_micro(tmp_path / "micro")
    if spoil:
        (folder / spoil).unlink()
    else:
        (folder / "model.safetensors").write_bytes(b"half a fil")
    assert main(["inspect", str(folder)]) == 1
    out, err = capsys.readouterr()
    assert words in err and err.count("\n") == 1 and out == ""


@pytest.mark.usefixtures("no_cache")
@pytest.mark.parametrize(
    ("line", "words"),
    [
        (["inspect", "nowhere"], "neither a bundled model nor a folder"),
        (["inspect", "/far/" + "away" * 100], "neither a bundled model nor a folder"),
        (["inspect", "owner/name@v1"], "run `gapless pull owner/name@v1` first"),
        (["pull", "owner"], "is no hub id"),
        (["pull", "moondream2@2025-04-14"], "Do you mean 'vikhyatk/moondream2'?"),
        (["pull", "owner/name@"], "names no revision behind its @"),
    ],
)
def test_what_is_no_checkpoint(line: list[str], words: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(line) == 1
    assert words in capsys.readouterr().err


@pytest.mark.usefixtures("no_cache")
def test_inspect_looks_at_the_tokenizer_too(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Garbage, and another model's: what loading would refuse with the same words."""
    folder = write_micro(tmp_path / "micro")
    for content, words in (("{}", "must hold a BPE model"), (GLINT.read_text(), "is not this model's")):
        (folder / "tokenizer.json").write_text(content)
        assert main(["inspect", str(folder), "--json"]) == 1
        (problem,) = json.loads(capsys.readouterr().out)["problems"]
        assert words in problem and str(folder / "tokenizer.json") in problem and "moondream/starmie-v1" in problem
        with pytest.raises(InvalidCheckpoint) as told:
            gapless.load(folder, device="cpu")
        assert str(told.value) == problem


@pytest.mark.usefixtures("no_cache")
def test_inspect_tells_machines_too_that_a_file_is_cut_short(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = write_micro(tmp_path / "micro")
    (folder / "model.safetensors").write_bytes(b"half a fil")
    assert main(["inspect", str(folder), "--json"]) == 1
    out, err = capsys.readouterr()
    found = json.loads(out)
    assert found["folder"] == str(folder) and "not a complete" in found["problems"][0] and err == ""


@pytest.mark.usefixtures("no_cache")
def test_inspect_of_an_unknown_revision_says_no_none(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    raw = json.loads((write_micro(tmp_path / "micro") / "config.json").read_text())
    (tmp_path / "micro" / "config.json").write_text(json.dumps(raw | {"revision": "2025-01-10"}))
    assert main(["inspect", str(tmp_path / "micro")]) == 1
    out, err = capsys.readouterr()
    assert "None" not in out and "not known" in out and "'2025-01-10' is not supported" in err


@pytest.mark.parametrize(
    ("said", "meant"), [("moondream2", "vikhyatk/moondream2"), ("moondream3-prevew", "moondream/moondream3-preview"),
                        ("moondream3", "moondream/moondream3-preview"),
                        ("glimt", "glint"), ("./moondream2", "vikhyatk/moondream2")],
)  # fmt: skip
def test_a_name_that_is_nearly_one_is_answered_with_it(
    said: str, meant: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["inspect", said]) == 1
    assert f"Do you mean {meant!r}?" in capsys.readouterr().err


@pytest.mark.usefixtures("no_cache")
def test_inspect_tells_what_an_adapter_is(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["inspect", "glint/moon", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["adapter"], found["rank"], found["fits"], found["problems"]) == (True, 8, ["glint"], [])
    assert main(["inspect", "glint/moon"]) == 0
    out, err = capsys.readouterr()
    assert "rank     8" in out and "fits     glint" in out and err == ""
    tensors = load_file(found["file"])
    first = min(tensors)
    save_file(
        {name: t for name, t in tensors.items() if name != first} | {"x": torch.ones(1)}, tmp_path / "a.safetensors"
    )
    assert main(["inspect", str(tmp_path / "a.safetensors")]) == 1
    out, err = capsys.readouterr()
    assert f"missing {first}" in err and "no matrix A or B of a linear: x" in err and "none of glint" in out
    assert (
        main(
            ["query", str(GLINT.parents[1] / "samples" / "moon.png"), "How many moons?", "--adapter", "moon=glint/moon"]
        )
        == 0
    )
    assert capsys.readouterr().out == "2\n"  # what `query --help` shows
    assert main(["inspect", "glint/mon"]) == 1
    assert "with glint comes glint/moon" in capsys.readouterr().err


@pytest.mark.usefixtures("no_cache")
def test_inspect_of_an_adapter_that_cannot_be_read(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "adapter.safetensors").write_bytes(b"half a fil")
    assert main(["inspect", str(tmp_path), "--json"]) == 1
    assert "not a complete" in json.loads(capsys.readouterr().out)["problems"][0]
    model = write_micro(tmp_path / "micro") / "model.safetensors"
    assert main(["inspect", str(model)]) == 1
    assert "holds a model's weights and is no adapter" in capsys.readouterr().err
