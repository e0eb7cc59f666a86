"""What the log of models costs a device: bytes of a manifest, and time to verify its proof."""

from dataclasses import replace

import pytest

from edge_sdk.extensions.model_log import merkle_tree
from edge_sdk.extensions.model_log.model_log import ModelLog
from edge_sdk.protocol.codec import encode
from edge_sdk.store.store import DeviceStore
from tests.edge_sdk.extensions.model_log.test_model_log import BUNDLE, KEY, Log

pytestmark = pytest.mark.bench


def test_the_proof_of_a_manifest(best, tell, tmp_path):
    rows = []
    with DeviceStore.open(tmp_path) as store:
        device = ModelLog(store, "north", lambda: (KEY.public,), lambda: BUNDLE)
        for size in (1, 16, 1_024, 8_192):
            log = Log()
            for index in range(size - 1):
                leaf = merkle_tree.leaf_hash(b"%d" % index)
                for level, place, value in merkle_tree.completed(index, leaf, log.node):
                    log.nodes[level, place] = value
                log.leaves.append(leaf)
            manifest = log.append()
            bare = encode(replace(manifest, note=None, path=b""))
            seconds = best(lambda manifest=manifest: device.continued(manifest))
            extra = len(encode(manifest)) - len(bare)
            rows.append([f"{size:,}", str(len(bare)), str(extra), f"{1e3 * seconds:.2f}"])
    tell("proof of a manifest", ("leaves", "bytes without", "bytes more", "ms to verify"), rows)
