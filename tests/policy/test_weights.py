"""Weights files: what comes back, and what is refused."""

from __future__ import annotations

import hashlib
import json
import random
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from georoutenet.errors import InputError
from georoutenet.io import packaged
from georoutenet.io.packaged import find_weights, packaged_weights
from georoutenet.model.config import LIMITS, PolicyConfig
from georoutenet.policy import Policy, weights
from georoutenet.policy.weights import load_policy, read_card, save_weights

CONFIG = PolicyConfig(hidden=8, heads=2, layers=2)


@pytest.fixture
def saved(tmp_path: Path) -> tuple[Policy, Path]:
    policy = Policy(CONFIG).eval()
    path = tmp_path / "model.safetensors"
    save_weights(path, policy, {"description": "a test", "seed": 7})
    return policy, path


def test_round_trip(saved: tuple[Policy, Path]) -> None:
    policy, path = saved
    loaded = load_policy(path)
    assert loaded.config == CONFIG
    assert not loaded.training
    coords = torch.rand(2, 6, 2)
    with torch.no_grad():
        assert torch.equal(loaded(coords).logits, policy(coords).logits)
    config, card = read_card(path)
    assert config == CONFIG
    assert card == {"description": "a test", "seed": 7}


def test_frozen_statistics_are_stored(tmp_path: Path) -> None:
    policy = Policy(PolicyConfig(encoder="nar4tsp", hidden=8, heads=2, layers=2)).eval()
    policy.collect_statistics(torch.rand(8, 10, 2))
    save_weights(tmp_path / "nar.safetensors", policy)
    coords = torch.rand(2, 6, 2)
    with torch.no_grad():
        assert torch.equal(load_policy(tmp_path / "nar.safetensors")(coords).logits, policy(coords).logits)


def rewrite(path: Path, **header: str) -> None:
    tensors = load_file(path)
    standard = {
        "format": weights.FORMAT,
        "version": "1",
        "config": json.dumps(CONFIG.to_dict()),
        "card": "{}",
    }
    save_file(tensors, path, metadata=standard | header)


@pytest.mark.parametrize(
    ("header", "message"),
    [
        ({"format": "pt"}, "not a GeoRouteNet weights file"),
        ({"version": "2"}, "please update"),
        ({"version": "two"}, "damaged"),
        ({"version": "0"}, "damaged"),
        ({"version": "-1"}, "damaged"),
        ({"version": " 1"}, "damaged"),
        ({"version": "9" * 5000}, "damaged"),
        ({"card": "[]"}, "card must be a table"),
        ({"card": '{"a": 1, "a": 2}'}, "'a' twice"),
        ({"sha256": "0" * 64}, "digest is not that of its contents"),
        ({"sha256": "ä"}, "64 hexadecimal digits"),
        ({"sha257": "0" * 64}, "unknown header entry 'sha257'"),
        ({"config": "{"}, "damaged"),
        ({"config": '{"depth": 3}'}, "unknown policy setting 'depth'"),
        ({"config": json.dumps(PolicyConfig(encoder="nar4tsp").to_dict())}, "another architecture"),
        (
            {"config": json.dumps(PolicyConfig(hidden=16, heads=2, layers=2).to_dict())},
            "another architecture",
        ),
    ],
)
def test_headers_of_other_files(saved: tuple[Policy, Path], header: dict[str, str], message: str) -> None:
    _, path = saved
    rewrite(path, **header)
    with pytest.raises(InputError, match=message) as caught:
        load_policy(path)
    assert str(path) in str(caught.value)


def file_with(config: str, table: dict[str, Any] | None = None, card: str = "{}") -> bytes:
    """A weights file made by hand, without any bytes of tensors."""
    metadata = {"format": weights.FORMAT, "version": "1", "config": config, "card": card}
    header = json.dumps({"__metadata__": metadata, **(table or {})}).encode()
    return len(header).to_bytes(8, "little") + header


@pytest.mark.parametrize("card", [False, True])
@pytest.mark.parametrize("text", ["[" * 100_000, "[" * 90 + "]" * 90, '{"a":' * 90 + "0" + "}" * 90])
def test_deep_json_is_refused(tmp_path: Path, text: str, card: bool) -> None:
    """Neither reading such a header nor printing it exhausts the stack."""
    path = tmp_path / "deep.safetensors"
    path.write_bytes(file_with("{}", card=text) if card else file_with(text))
    for read in (load_policy, read_card):
        with pytest.raises(InputError, match=r"nested deeper|not JSON"):
            read(path)
    path.write_bytes(len(text).to_bytes(8, "little") + text.encode())
    with pytest.raises(InputError, match="damaged"):
        load_policy(path)


@pytest.mark.parametrize(
    "value", ["NaN", "Infinity", "1e308", "1e999", str(2**70), "9" * 5000, "true", '"8"']
)
@pytest.mark.parametrize("name", [*LIMITS])
def test_numbers_beyond_all_use_are_refused(tmp_path: Path, name: str, value: str) -> None:
    """A header may ask for anything; no number in it reaches PyTorch unchecked."""
    path = tmp_path / "large.safetensors"
    path.write_bytes(file_with(f'{{"{name}": {value}}}'))
    with pytest.raises(InputError, match=f"{name} must be|not JSON"):
        load_policy(path)


def test_limits_of_the_configuration_are_allowed() -> None:
    assert PolicyConfig(**LIMITS).to_dict().items() >= LIMITS.items()  # type: ignore[arg-type]
    for name, most in LIMITS.items():
        with pytest.raises(InputError, match=f"{name} must be .* to "):
            PolicyConfig(**{name: most + 1})  # type: ignore[arg-type]


def test_a_short_file_never_builds_a_large_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The tensors that a header names are compared with the model's before the model gets any memory."""
    places: list[str] = []

    class Watched(Policy):
        def __init__(self, config: PolicyConfig) -> None:
            super().__init__(config)
            places.extend(parameter.device.type for parameter in self.parameters())

    monkeypatch.setattr(weights, "Policy", Watched)
    path = tmp_path / "short.safetensors"
    config = json.dumps({"hidden": 256, "layers": 2})
    path.write_bytes(file_with(config))
    with pytest.raises(InputError, match="another architecture"):
        load_policy(path)
    expected = Policy(PolicyConfig(hidden=256, layers=2)).encoder.state_dict()
    empty = {
        name: {"dtype": "F32", "shape": list(value.shape), "data_offsets": [0, 0]}
        for name, value in expected.items()
    }
    path.write_bytes(file_with(config, empty))
    with pytest.raises(InputError, match="0 bytes of tensors instead of"):
        load_policy(path)
    assert set(places) == {"meta"}


@pytest.mark.parametrize("dtype", [torch.int32, torch.bool, torch.complex64, torch.uint8])
def test_only_real_numbers_are_weights(saved: tuple[Policy, Path], dtype: torch.dtype) -> None:
    """Integers, truth values and complex numbers would be converted, the latter without their other half."""
    _, path = saved
    tensors = load_file(path)
    tensors["node_input.bias"] = torch.ones(CONFIG.hidden).to(dtype)
    try:
        save_file(tensors, path)
    except KeyError:
        pytest.skip(f"this version of safetensors writes no {dtype}")
    rewrite(path)
    with pytest.raises(InputError, match=r"node_input\.bias holds numbers of type '.*; allowed: F64, F32"):
        load_policy(path)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_other_precisions_become_float32(saved: tuple[Policy, Path], dtype: torch.dtype) -> None:
    policy, path = saved
    save_weights(path, policy.to(dtype))
    loaded = load_policy(path)
    assert loaded.dtype == torch.float32
    for name, value in policy.state_dict().items():
        assert torch.equal(loaded.state_dict()[name], value.float())


def test_every_flipped_bit_is_found(saved: tuple[Policy, Path]) -> None:
    """Header or tensors: a file that is not the one written never gives a policy, nor its card."""
    _, path = saved
    whole = path.read_bytes()
    header = 8 + int.from_bytes(whole[:8], "little")
    chance = random.Random(0)
    positions = [
        *chance.sample(range(8 * header), 200),
        *chance.sample(range(8 * header, 8 * len(whole)), 100),
    ]
    for position in positions:
        damaged = bytearray(whole)
        damaged[position // 8] ^= 1 << position % 8
        path.write_bytes(damaged)
        for read in (load_policy, read_card):
            with pytest.raises(InputError):
                read(path)
    path.write_bytes(whole)
    load_policy(path)


def test_the_digest_is_that_of_the_file(saved: tuple[Policy, Path]) -> None:
    """Anybody can check it: the SHA-256 of the file with the digest's digits as zeros."""
    for path in (saved[1], *packaged_weights().values()):
        whole = path.read_bytes()
        header = json.loads(whole[8 : 8 + int.from_bytes(whole[:8], "little")])
        stored = header["__metadata__"]["sha256"]
        assert hashlib.sha256(whole.replace(stored.encode(), b"0" * 64)).hexdigest() == stored


@pytest.mark.parametrize("name", packaged_weights())
def test_a_damaged_copy_of_packaged_weights_is_refused(tmp_path: Path, name: str) -> None:
    """In any folder, whichever bit it is: of the header's length, of the header or of the tensors."""
    path = tmp_path / "copy.safetensors"
    shutil.copy(packaged_weights()[name], path)
    whole = path.read_bytes()
    header = 8 + int.from_bytes(whole[:8], "little")
    chance = random.Random(0)
    early = [*chance.sample(range(64), 4), *chance.sample(range(64, 8 * header), 20)]
    late = [8 * header, *chance.sample(range(8 * header, 8 * len(whole)), 12), 8 * len(whole) - 1]
    named = r"copy\.safetensors"
    clear = rf"{named} is damaged .*: its digest is not that of its contents; .* again"

    def put(at: int, byte: int) -> None:
        with open(path, "r+b") as file:
            file.seek(at)
            file.write(bytes([byte]))

    for position in early + late:
        at, bit = divmod(position, 8)
        put(at, whole[at] ^ 1 << bit)
        with pytest.raises(InputError, match=clear if position in late else named):
            load_policy(path)
        put(at, whole[at])
    assert path.read_bytes() == whole
    load_policy(path)


TRUNCATING = """
import os, sys
from georoutenet.errors import InputError
from georoutenet.policy import weights

path, from_dict = sys.argv[1], weights.PolicyConfig.from_dict
def truncating(values):
    os.truncate(path, 100_000)
    return from_dict(values)
weights.PolicyConfig.from_dict = truncating
try:
    weights.load_policy(path)
except InputError as error:
    sys.exit(str(error))
"""


def test_a_file_truncated_while_it_is_read_gives_an_error(tmp_path: Path) -> None:
    """A mapped file would end the process with SIGBUS."""
    path = tmp_path / "shrinking.safetensors"
    shutil.copy(packaged.PACKAGED / "georoutenet.safetensors", path)
    done = subprocess.run(
        [sys.executable, "-c", TRUNCATING, path], capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 1, done
    assert "became shorter while it was read" in done.stderr


def test_names_that_no_file_can_have(tmp_path: Path) -> None:
    for name in ("n" * 300, "nul\0byte", str(tmp_path)):
        with pytest.raises(InputError, match="no weights"):
            load_policy(name)


def test_weights_that_are_not_there_yet(saved: tuple[Policy, Path]) -> None:
    """A run that was stopped before its first validation has no best weights: the others are named."""
    path = saved[1]
    with pytest.raises(InputError, match=rf"best.safetensors.*; in that folder: {path.name}$"):
        load_policy(path.with_name("best.safetensors"))


def test_damaged_files(saved: tuple[Policy, Path]) -> None:
    _, path = saved
    whole = path.read_bytes()
    for damaged in (
        b"",
        whole[:4],
        whole[: len(whole) // 2],
        b"PK" + whole[2:],
        whole[:8] + b"x" + whole[9:],
    ):
        path.write_bytes(damaged)
        with pytest.raises(InputError, match="damaged"):
            load_policy(path)


def test_a_pickle_is_not_opened(tmp_path: Path) -> None:
    path = tmp_path / "model.pt"
    torch.save({"a": torch.zeros(1)}, path)
    with pytest.raises(InputError, match="damaged or not a weights file"):
        load_policy(path)


def test_values_that_are_not_finite(saved: tuple[Policy, Path]) -> None:
    policy, path = saved
    before = path.read_bytes()
    with torch.no_grad():
        policy.encoder.node_input.bias[0] = torch.nan
    with pytest.raises(InputError, match=r"node_input\.bias"):
        save_weights(path, policy)
    assert path.read_bytes() == before
    tensors = load_file(path)
    tensors["node_input.bias"][0] = torch.inf
    save_file(tensors, path)
    rewrite(path)
    with pytest.raises(InputError, match="not finite"):
        load_policy(path)


def test_packaged_names(tmp_path: Path, saved: tuple[Policy, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packaged, "PACKAGED", tmp_path)
    assert packaged_weights() == {"model": saved[1]}
    assert find_weights("model") == saved[1]
    with pytest.raises(InputError, match=r"packaged: model"):
        load_policy("georoutenet-51")


def test_every_packaged_file_loads() -> None:
    for name in packaged_weights():
        _, card = read_card(name)
        assert card["description"]
        load_policy(name)
