"""Command line."""
from __future__ import annotations
import argparse, json, sys, tempfile
from pathlib import Path
from tools.certificate_year.year import Year, YearSettings

def main():
    p = argparse.ArgumentParser()
    p.add_argument("--devices", type=int, default=2000); p.add_argument("--days", type=int, default=365); p.add_argument("--seed", type=int, default=1)
    p.add_argument("--kill-rate", type=float, default=0.03)
    a = p.parse_args()
    with tempfile.TemporaryDirectory(dir="/dev/shm") as f:
        r = Year(YearSettings(a.devices, a.days, a.seed, kill_rate=a.kill_rate), Path(f)).run()
    print(json.dumps(r.as_dict(), indent=1))
main()
