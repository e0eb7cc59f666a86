"""Links to a broker: MQTT, the in-process loopback, TLS files and link traces."""
