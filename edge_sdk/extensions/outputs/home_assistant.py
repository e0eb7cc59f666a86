"""Describe the forecast to Home Assistant: one retained discovery message for the whole device.

The message is a device discovery payload (Home Assistant 2024.11 and newer): ``device``, ``origin`` and
``components`` are required, each component needs ``platform`` and ``unique_id``, and availability
and state topic are shared. https://www.home-assistant.io/integrations/mqtt/#discovery-payload
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Final

from edge_sdk.app.cli import installed_version
from edge_sdk.forecasting.forecast import IssuedForecast

DEVICE_CLASSES: Final = {
    "kWh": "energy",
    "kW": "power",
    "m³": "volume",
    "°C": "temperature",
    "m/s": "wind_speed",
    "W/m²": "irradiance",
    "Mbit/s": "data_rate",
    "Mbit": "data_size",
}
"""Device class of Home Assistant by unit. No state class: a forecast is no meter reading."""


def discovery_topic(prefix: str, device: str) -> str:
    """Return the topic of the discovery message.

    >>> discovery_topic("homeassistant", "meter-1")
    'homeassistant/device/gridfed_meter-1/config'
    """
    return f"{prefix}/device/gridfed_{device}/config"


def discovery(
    issued: IssuedForecast,
    state: str,
    availability: str,
    entities: Mapping[str, str] = MappingProxyType({}),
) -> dict[str, Any]:
    """Return the discovery message.

    Args:
        issued: A forecast of the device: the units and names are its own.
        state: Topic of the forecast as JSON.
        availability: Topic of ``online`` and ``offline``.
        entities: Topic of each further sensor by its format, see ``energy_managers.entity``.
    """
    name = f"gridfed_{issued.device}"
    unit = issued.forecast.unit
    value = {"unit_of_measurement": unit} if unit not in ("", "1") else {}
    if unit in DEVICE_CLASSES:
        value["device_class"] = DEVICE_CLASSES[unit]
    error = {key: text for key, text in value.items() if key == "unit_of_measurement"}
    later = {"entity_category": "diagnostic"}
    first = "value_json['values'][0]"
    return {
        "device": {
            "identifiers": [name],
            "name": f"gridfed {issued.device}",
            "manufacturer": "gridfed",
            "model": f"{issued.bundle} {issued.bundle_version}",
            "sw_version": installed_version(),
        },
        "origin": {"name": "gridfed", "sw_version": installed_version()},
        "state_topic": state,
        "availability_topic": availability,
        "qos": 1,
        "components": {
            f"{name}_next": {
                "platform": "sensor",
                "unique_id": f"{name}_next",
                "name": "Forecast",
                "value_template": f"{{{{ {first}.value if value_json['values'] else None }}}}",
                "json_attributes_topic": state,
                "json_attributes_template": _ATTRIBUTES,
                **value,
            },
            **{
                f"{name}_{end}": {
                    "platform": "sensor",
                    "unique_id": f"{name}_{end}",
                    "name": f"Forecast, {end} end",
                    "value_template": f"{{{{ {first}.{end} if value_json['values'] else None }}}}",
                    **value,
                }
                for end in ("lower", "upper")
            },
            f"{name}_issued": {
                "platform": "sensor",
                "unique_id": f"{name}_issued",
                "name": "Forecast issued",
                "device_class": "timestamp",
                "value_template": "{{ value_json.issued_at }}",
                **later,
            },
            f"{name}_source": {
                "platform": "sensor",
                "unique_id": f"{name}_source",
                "name": "Forecast source",
                "value_template": "{{ value_json.source }}",
                **later,
            },
            f"{name}_error": {
                "platform": "sensor",
                "unique_id": f"{name}_error",
                "name": "Forecast error",
                "value_template": "{{ value_json.quality.error }}",
                **error,
                **later,
            },
            **{
                f"{name}_{form}": {
                    "platform": "sensor",
                    "unique_id": f"{name}_{form}",
                    "name": _NAMES[form],
                    "state_topic": topic,
                    "value_template": "{{ value_json.state }}",
                    "json_attributes_topic": topic,
                    "json_attributes_template": "{{ value_json.attributes | tojson }}",
                    **(_PLANNED.get(form) or value),
                }
                for form, topic in entities.items()
            },
        },
    }


_NAMES: Final = {
    "home-assistant": "Forecast now",
    "emhass": "Forecast for EMHASS",
    "predbat": "Forecast for Predbat",
}
_PLANNED: Final = {
    "emhass": {"unit_of_measurement": "W", "device_class": "power"},
    "predbat": {"unit_of_measurement": "kWh", "device_class": "energy"},
}


_ATTRIBUTES: Final = (
    "{{ {'forecast': value_json['values'], 'issued_at': value_json.issued_at, "
    "'coverage': value_json.coverage, 'model': value_json.model, "
    "'quality': value_json.quality} | tojson }}"
)
