"""A port that was drawn is reserved for its server and for nobody else."""

from __future__ import annotations

import socket
import subprocess
import sys

from firmware_sim.fleet import federation
from firmware_sim.fleet.federation import free_port


def test_a_drawn_port_is_not_drawn_again_and_a_server_can_listen_on_it(monkeypatch):
    port = free_port(2)
    draws = iter([port - federation._LOWEST, port + 1 - federation._LOWEST, 7777])
    monkeypatch.setattr("secrets.randbelow", lambda _: next(draws))
    assert free_port() == federation._LOWEST + 7777
    with socket.create_server(("127.0.0.1", port)) as server:  # sets SO_REUSEADDR
        server.listen()


def test_another_process_does_not_draw_a_reserved_port():
    port = free_port()
    code = f"from firmware_sim.fleet.federation import _bound; print(_bound({port}))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "None"
