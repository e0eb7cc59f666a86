"""PROTOCOL.md is enough: a decoder written from it alone agrees with ours on every vector."""

import ast
import importlib.util
import json
import re
from pathlib import Path

import pytest

from edge_sdk.app.schema import key_of
from edge_sdk.errors import Reason
from edge_sdk.protocol import messages
from edge_sdk.protocol.messages import KINDS, RESERVED

HERE = Path(__file__).parent
FOLDER = HERE.parents[1] / "vectors"
INDEX = json.loads((FOLDER / "index.json").read_text())
TEXT = (Path(messages.__file__).parent / "PROTOCOL.md").read_text()

_found = importlib.util.spec_from_file_location("second_decoder", HERE / "second_decoder.py")
second = importlib.util.module_from_spec(_found)
_found.loader.exec_module(second)


def plain(value):
    if isinstance(value, bytes):
        return value.hex()
    return [plain(item) for item in value] if isinstance(value, list) else value


def parse(name):
    case = INDEX["payloads"][name]
    body = second.unwrap(
        (FOLDER / f"{name}.bin").read_bytes(),
        case["topic"].split("/")[5] if "/up/" in case["topic"] else case["kind"],
        case["sender"],
        case["recipient"],
        INDEX["fleet"],
        bytes.fromhex(INDEX["keys"][case["sender"]]),
        bytes.fromhex(INDEX["decryption"].get(case["recipient"], "")),
    )
    return second.parse(case["kind"], body)


def test_the_second_decoder_imports_nothing_of_the_product():
    tree = ast.parse((HERE / "second_decoder.py").read_text())
    modules = {n.module for n in ast.walk(tree) if isinstance(n, ast.ImportFrom)}
    modules |= {a.name for n in ast.walk(tree) if isinstance(n, ast.Import) for a in n.names}
    assert {name.split(".")[0] for name in modules} == {
        "base64", "hashlib", "struct", "cryptography",
    }  # fmt: skip


@pytest.mark.parametrize("name", sorted(INDEX["payloads"]))
def test_both_decoders_agree_on_a_payload(name):
    case = INDEX["payloads"][name]
    if not case["refused"]:
        assert {key: plain(value) for key, value in parse(name).items()} == case["fields"]
    elif case["refused"] == "BAD_CHUNK":
        offer = parse("offer")
        assert parse(name)["i"] >= -(-offer["size"] // offer["chunk"])
    else:
        with pytest.raises(second.Bad, match=case["refused"]):
            second.tensor(parse(name)["blob"], "f4", INDEX["size"])


@pytest.mark.parametrize("name", sorted(INDEX["tensors"]))
def test_both_decoders_read_the_same_tensor(name):
    case = INDEX["tensors"][name]
    blob = (FOLDER / f"tensor-{name}.bin").read_bytes()
    assert second.tensor(blob, case["enc"], len(case["vector"])) == case["vector"]


def test_both_decoders_apply_the_step_to_the_announced_model():
    manifest, body = parse("model-step"), parse("part-step")["blob"]
    assert body == (FOLDER / "body-step.bin").read_bytes()
    assert manifest["deltas"] == [[40, 1]]
    assert second.after_step(manifest, body, INDEX["step"]["base"]) == INDEX["step"]["model"]
    with pytest.raises(second.Bad, match="BAD_DIGEST"):
        second.after_step(manifest, body, [-0.7421875, 3.25])


def test_the_second_decoder_removes_the_mask_of_a_sum():
    said, (contract,) = parse("sum"), parse("sums")["contracts"]
    key, witness = bytes.fromhex(INDEX["keys"]["meter-0042"]), bytes(range(32))
    found = second.unmasked(contract, said, "north", "meter-0042", key, witness)
    assert found == [0, 0, 20_000, 21_500]  # of -99, -20, 0 and 1.5 above -20 in steps of 0.001
    for changed in ({"period": 0}, {"enc": bytes(32)}, {"blob": bytes(32)}):
        with pytest.raises(second.Bad, match="BAD_SIGNATURE"):
            second.unmasked(contract, said | changed, "north", "meter-0042", key, witness)


def test_the_offer_proves_the_body_that_its_chunks_carry():
    offer = parse("offer")
    body = parse("chunk-0")["blob"] + parse("chunk-1")["blob"]
    key = bytes.fromhex(INDEX["keys"]["meter-0042"])
    second.check(offer["digest"], offer["sig"], "update", "meter-0042", "_agg", "north", key)
    assert len(second.parse("update", body)["blob"]) == 12000


@pytest.mark.parametrize("kind", sorted(KINDS))
def test_the_text_names_every_field_and_no_other(kind):
    section = re.search(rf"^### {kind} .*?(?=^##)", TEXT, re.MULTILINE | re.DOTALL)[0]
    body = section.split("|---|---|---|")[-1]
    cells = [line.split("|")[1] for line in body.splitlines() if line.startswith("|")]
    said = re.findall(r"`(\w+)`", " ".join(cells) if cells else section)
    fields = {key_of(name) for name in KINDS[kind].__slots__} - {"blob"}
    assert set(said) == fields
    assert ("*blob*" in section) == ("blob" in KINDS[kind].__slots__)


@pytest.mark.parametrize("kind", sorted(KINDS))
def test_the_second_table_is_the_same_as_the_classes(kind):
    with_blob, keys, _ = second.TABLE[kind]
    fields = {key_of(name) for name in KINDS[kind].__slots__}
    assert keys.keys() | ({"blob"} if with_blob else set()) == fields


LOCAL = ("ROLLBACK", "UNUSABLE_LINK", "LOG_FORK", "NOT_LOGGED")


def test_the_text_lists_every_code_with_its_number_and_channel():
    for reason in Reason:
        channel = (
            ", local" if reason.name in LOCAL
            else " R, N" if reason is Reason.INTERNAL
            else " R" if reason.is_final else " N"
        )  # fmt: skip
        assert f"| {reason.value} {reason.name}{channel} |" in TEXT


def test_the_text_lists_the_reserved_kinds():
    section = TEXT.split("## 15 Reserved")[1]
    assert set(re.findall(r"`(\w+)`", section)) >= RESERVED
    assert not RESERVED & KINDS.keys()


def test_the_dump_in_the_text_is_the_vector():
    dump = TEXT.split("The whole payload")[1].split("```")[1]
    words = re.sub(r"^[0-9a-f]{4}  ", "", dump, flags=re.MULTILINE)
    assert bytes.fromhex(words) == (FOLDER / "update.bin").read_bytes()
