"""Sources of readings: files, P1, Modbus, OCPP, 3GPP, HTTP and MQTT."""
