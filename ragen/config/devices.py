"""Which accelerators this machine has, without importing torch (which takes half a minute to say so)."""

from __future__ import annotations

import os
import shutil
import subprocess
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

__all__ = ["Device", "cuda_devices", "installed"]


@dataclass(frozen=True)
class Device:
    name: str
    #: Bytes of memory; None where it could not be read.
    memory: int | None


def cuda_devices(visible: str | None = None) -> list[Device]:
    """The CUDA devices that this process may use.

    visible: what `CUDA_VISIBLE_DEVICES` is going to be ("0,1"); None: what it is now. The driver is asked through
    nvidia-smi; without that tool the device files are counted.
    """
    devices = _from_nvidia_smi()
    if devices is None:
        devices = [Device("CUDA device", None) for _ in Path("/dev").glob("nvidia[0-9]*")]
    visible = os.environ.get("CUDA_VISIBLE_DEVICES") if visible is None else visible
    if visible is None:
        return devices
    names = [part.strip() for part in visible.split(",") if part.strip()]
    chosen = []
    for name in names:
        if name.isdigit():
            if int(name) >= len(devices):
                break  # CUDA ignores everything from the first unknown device on
            chosen.append(devices[int(name)])
        elif name.startswith("-"):
            break
        elif devices:
            chosen.append(devices[0])  # by UUID: which one it is does not matter here
    return chosen


def installed(distribution: str) -> str | None:
    """The version of an installed distribution, or None."""
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return None


def _from_nvidia_smi() -> list[Device] | None:
    tool = shutil.which("nvidia-smi")
    if tool is None:
        return None
    command = [tool, "--query-gpu=name,memory.total", "--format=csv,noheader,nounits"]
    try:
        out = subprocess.run(command, capture_output=True, text=True, timeout=15, check=True).stdout
    except (OSError, subprocess.SubprocessError):
        return None
    devices = []
    for line in filter(None, map(str.strip, out.splitlines())):
        name, _, mib = line.rpartition(",")
        devices.append(Device(name.strip(), int(mib) * 2**20 if mib.strip().isdigit() else None))
    return devices
