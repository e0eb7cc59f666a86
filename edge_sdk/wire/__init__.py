"""The protocol between devices and aggregator: messages, links, keys and method contracts."""
