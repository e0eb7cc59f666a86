"""Links to a broker over MQTT, and their TLS files."""
