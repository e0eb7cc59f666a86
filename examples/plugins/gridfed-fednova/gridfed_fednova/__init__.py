"""FedNova for gridfed: devices take as many steps as their data asks for, without a bias.

A device with more windows takes more local steps. Averaging the changes would then give it more
weight than intended. Each device therefore sends its change divided by its number of steps, and the
server multiplies the average by the mean number of steps.

Reference:
    Wang et al., Tackling the Objective Inconsistency Problem in Heterogeneous Federated
    Optimization, NeurIPS 2020, equations 5 to 7, with plain local steps.
"""

from edge_sdk.protocol.contract.method import LOSS, RATE, STEPS, Ask, Number, Up
from edge_sdk.protocol.contract.plugin import MethodPlugin

METHOD = MethodPlugin(
    contract={
        "train": Ask(
            graphs=("gradient",),
            down=("w",),
            numbers=(STEPS, RATE, Number("epochs", 1e-3, 100.0)),
            up=Up.DELTA,
            report=(LOSS, Number("taken", 1, 65536, measured=True, needed=True)),
        )
    },
    device="gridfed_fednova.device:fednova",
    server="gridfed_fednova.server:METHOD",
)
