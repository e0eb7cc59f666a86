"""SCAFFOLD for gridfed: control variates correct the drift of local steps on unlike devices.

Device i keeps a control variate c_i, the server their mean c. Every local step follows g - c_i + c
instead of g. After K steps of rate r that change the model by d = received - trained, the device's
next control variate is c_i - c + d / (K r); the server computes the same change from d, so a device
sends no more than in FedAvg.

Reference:
    Karimireddy et al., SCAFFOLD: Stochastic Controlled Averaging for Federated Learning, ICML 2020,
    algorithm 1, option II.
"""

from edge_sdk.protocol.contract.method import LOSS, RATE, STEPS, Ask, Number, Up
from edge_sdk.protocol.contract.plugin import MethodPlugin

METHOD = MethodPlugin(
    contract={
        "train": Ask(
            graphs=("gradient",),
            down=("w", "c"),
            numbers=(STEPS, RATE, Number("counted", 0, 2**31)),  # 1 + base of its last used answer
            up=Up.DELTA,
            report=(LOSS,),
            personal=True,  # a task with two arrays goes to one device at a time
            patient=True,
            mirrored=True,  # both ends compute with the answer, so no noise is added to it
        )
    },
    device="gridfed_scaffold.device:scaffold",
    server="gridfed_scaffold.server:METHOD",
)
