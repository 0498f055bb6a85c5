"""Findings on torch, the GPU and its JPEG decoder. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from presize.doctor.facts import CheckUp, Finding
from presize.formatting import plural, size_text


def torch_finding(facts: CheckUp) -> Finding:
    torch, cpu = facts.torch, facts.cpu
    if isinstance(torch, str):
        return Finding("torch", "warn", torch, 'pip install "presize[torch]" (builds work without it)')
    found = f"{torch.version}, {torch.instructions}, {plural(torch.threads, 'thread')}"
    if torch.threads > max(1, cpu.usable):
        cores = max(1, int(cpu.usable))
        return Finding(
            "torch", "warn", f"{found} for {cpu.usable:g} cores", f"OMP_NUM_THREADS={cores} in the environment"
        )
    return Finding("torch", "ok", found)


def gpu_finding(facts: CheckUp) -> Finding:
    torch, nvidia = facts.torch, facts.nvidia
    there = f"{_counted(nvidia.gpus) or 'NVIDIA'}, driver {nvidia.driver}" if nvidia else None
    if isinstance(torch, str):
        return Finding("GPU", "unknown", f"{there}; no torch to use it" if there else "not known without torch")
    if torch.gpus:
        gpus = _counted([f"{gpu.name} ({size_text(gpu.memory_bytes)})" for gpu in torch.gpus])
        about = [torch.platform, f"driver {nvidia.driver}" if nvidia else None]
        capabilities = sorted({gpu.capability for gpu in torch.gpus if gpu.capability})
        about.append(f"compute capability {', '.join(capabilities)}" if capabilities else None)
        about.append(f"{min(nvidia.pcie_lanes)} PCIe lanes" if nvidia and nvidia.pcie_lanes else None)
        return Finding("GPU", "ok", ", ".join([gpus, *filter(None, about)]))
    if there and torch.platform is None:
        return Finding(
            "GPU", "bad", f"{there}; torch {torch.version} is built for the CPU only",
            "install a CUDA build: pytorch.org/get-started",
        )  # fmt: skip
    if there or torch.said:
        said = f": {torch.said}" if torch.said else ""
        return Finding(
            "GPU", "bad", f"{there or 'a GPU'}; torch {torch.version} ({torch.platform}) cannot use it{said}",
            "update the driver, or give the container the GPU: docker run --gpus all",
        )  # fmt: skip
    return Finding("GPU", "ok", f"{torch.accelerator} (torch's name)" if torch.accelerator else "none")


def gpu_decoder_finding(facts: CheckUp) -> Finding | None:
    torch = facts.torch
    if isinstance(torch, str) or not torch.gpus:
        return None
    if torch.decoder:
        return Finding("GPU decoder", "ok", f'JPEG by {torch.decoder}; Loader(decode_on="device") uses it')
    return Finding("GPU decoder", "ok", "none; workers decode", torch.no_decoder)


def _counted(names: Sequence[str]) -> str:
    """``2 x H100, L4``"""
    return ", ".join(
        f"{names.count(name)} x {name}" if names.count(name) > 1 else name for name in dict.fromkeys(names)
    )
