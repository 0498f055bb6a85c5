"""Findings on the codecs and resizers that are installed. Pure."""

from __future__ import annotations

from presize.doctor.facts import CheckUp, Finding
from presize.formatting import plural


def jpeg_finding(facts: CheckUp) -> Finding:
    jpeg = facts.codecs.jpeg
    found = f"simplejpeg {jpeg.simplejpeg}"
    if jpeg.libjpeg_turbo is None:
        return Finding("JPEG", "unknown", f"{found}; its libjpeg-turbo is not known")
    found += f", libjpeg-turbo {jpeg.libjpeg_turbo}"
    if not jpeg.simd:
        return Finding(
            "JPEG", "bad", f"{found} without SIMD",
            "pip install --force-reinstall --no-deps --only-binary :all: simplejpeg (or build it with nasm installed)",
        )  # fmt: skip
    if jpeg.simd_limits:
        return Finding(
            "JPEG", "bad" if "JSIMD_FORCENONE=1" in jpeg.simd_limits else "warn",
            f"{found}, with SIMD limited by {' and '.join(jpeg.simd_limits)}",
            f"unset {' '.join(name.partition('=')[0] for name in jpeg.simd_limits)}",
        )  # fmt: skip
    found += " with SIMD"
    if jpeg.baseline == "failed its self-check":
        return Finding(
            "JPEG", "bad", f"{found}; presize's own decoder failed its self-check and is off: {jpeg.baseline_reason}",
            "report it, with this output; libjpeg-turbo decodes meanwhile: slower, and the pixels are right",
        )  # fmt: skip
    if jpeg.baseline == "switched off":
        return Finding(
            "JPEG", "warn", f"{found}; presize's own, faster decoder is switched off: {jpeg.baseline_reason}",
            "unset PRESIZE_DECODER",
        )  # fmt: skip
    if jpeg.baseline == "not compiled":
        return Finding(
            "JPEG", "warn", f"{found}; presize's own, faster decoder is not compiled",
            "apt-get install gcc python3-dev (a C compiler), then pip install --force-reinstall --no-deps presize",
        )  # fmt: skip
    if jpeg.baseline == "not for this processor":
        return Finding("JPEG", "ok", f"{found}; presize's own decoder is for x86-64 and ARM64")
    return Finding("JPEG", "ok", f"{found}; presize's own decoder for baseline JPEG")


def resizer_finding(facts: CheckUp) -> Finding:
    resizer, best = facts.codecs.resizer, facts.cpu.instructions or ()
    found = f"cykooz.resizer {resizer.version}, {resizer.instructions or 'no SIMD'}"
    possible = next((name for name in ("AVX2", "SSE4", "NEON") if name in best), None)
    if possible and resizer.instructions != possible:
        return Finding(
            "resize", "warn", f"{found}, though the CPU has {possible}",
            "pip install --upgrade --force-reinstall --no-deps --only-binary :all: cykooz.resizer",
        )  # fmt: skip
    return Finding("resize", "ok" if resizer.instructions else "warn", found)


def pillow_finding(facts: CheckUp) -> Finding:
    pillow = facts.codecs.pillow
    turbo = f"libjpeg-turbo {pillow.libjpeg_turbo}" if pillow.libjpeg_turbo else "a libjpeg that is not libjpeg-turbo"
    found = f"{'pillow-simd' if pillow.simd else 'Pillow'} {pillow.version}, {turbo}"
    anew = "pip uninstall -y pillow pillow-simd && pip install pillow"
    if len(pillow.distributions) > 1:
        return Finding("PIL", "warn", f"{found}; Pillow and pillow-simd are both installed, in the same folder", anew)
    if pillow.simd:
        return Finding("PIL", "warn", f"{found}; it lacks the latest fixes to Pillow's decoders", anew)
    if not pillow.libjpeg_turbo:
        return Finding("PIL", "warn", found, "pip install --force-reinstall --only-binary :all: pillow")
    return Finding("PIL", "ok", found)


def opencv_finding(facts: CheckUp) -> Finding:
    opencv = facts.codecs.opencv
    best = opencv.instructions[-1] if opencv.instructions else "no SIMD"
    found = f"{opencv.version}, {best}, {plural(opencv.threads, 'thread')}"
    if not opencv.optimized:
        return Finding("OpenCV", "warn", f"{found}, optimized code is off", "cv2.setUseOptimized(True)")
    own = "in a DataLoader of your own: cv2.setNumThreads(0) in each worker"  # presize's loaders do that
    return Finding("OpenCV", "ok", found, own if opencv.threads > 1 else None)
