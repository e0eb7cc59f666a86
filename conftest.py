"""What pytest must not import: what needs packages that are not there, and is no test itself."""

from importlib.util import find_spec

_CAN_AUTHOR = find_spec("torch") is not None and find_spec("onnx") is not None

collect_ignore_glob = (
    [] if _CAN_AUTHOR else ["aggregator/models/*.py", "aggregator/graph/nets/*.py"]
)

if any(find_spec(name) is None for name in ("jinja2", "starlette", "uvicorn")):
    collect_ignore_glob += ["aggregator/console/*.py", "tests/aggregator/console/*.py"]

if find_spec("ocpp") is None or find_spec("websockets") is None:
    collect_ignore_glob.append("tests/firmware_sim/backoffice.py")
