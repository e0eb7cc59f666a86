"""Outputs of forecasts: MQTT, Home Assistant, HTTP, a file, the fleet."""
