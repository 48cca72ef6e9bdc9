"""Xids, the error numbers of NVIDIA's driver: meaning and severity."""

from __future__ import annotations

from typing import Final

from muster.protocol.observations.hardware_events import Grade

HARMLESS: Final = {
    13: "a kernel of the program made an invalid access (most often an index out of range)",
    31: "the program accessed GPU memory outside its own",
    43: "the program's GPU channel was stopped after an error of the program",
    45: "the GPU's channels were cleaned up as the program ended",
    63: "a memory row was remapped, or will be at the next reset",
    68: "the video processor reported an error of the program",
    92: "many single-bit memory errors were corrected",
    109: "the program's work on the GPU timed out",
}
"""Errors that a program can cause, or that need no action, each with its meaning for the program's
author. All others are errors of the machine.
"""
NOTES: Final = frozenset({63, 92})
"""The GPU has repaired its memory, or reports corrected errors."""
SHOWN: Final = frozenset(HARMLESS.keys() - NOTES)
"""Usually caused by the program: its rank fails, and the GPU is undamaged."""
RECOVERY: Final = 154
"""Not an error: the driver recommends a recovery action."""

_NAMES: Final = {
    13: "a graphics engine exception, most often of the program",
    31: "a memory page fault, most often of the program",
    32: "an invalid or corrupted push buffer",
    38: "a firmware error of the driver",
    43: "the GPU stopped processing, most often by an error of the program",
    45: "work was removed as its program ended",
    48: "a double-bit ECC error",
    61: "an internal micro-controller breakpoint",
    62: "an internal micro-controller halt",
    63: "a row of its memory is remapped, or a page retired",
    64: "a row of its memory could not be remapped, or a page not retired",
    68: "a video processor exception",
    69: "a graphics engine class error",
    74: "an NVLink error",
    79: "the GPU has fallen off the bus",
    92: "many single-bit ECC errors",
    94: "a contained ECC error",
    95: "an uncontained ECC error",
    109: "a context switch timed out",
    119: "its system processor (GSP) does not answer",
    120: "an error of its system processor (GSP)",
    136: "a link training failed",
    140: "an unrecovered ECC error",
    143: "its initialisation failed",
    144: "an NVLink error (SAW MVB)",
    145: "an NVLink error (RLW)",
    146: "an NVLink error (TLW)",
    147: "an NVLink error (TREX)",
    148: "an NVLink error (NVLPW)",
    149: "an NVLink error (NETIR)",
    150: "an NVLink error (MSE)",
    154: "the driver asks for a recovery",
}


def name_of(xid: int) -> str:
    """Return the meaning, as text that follows `Xid 79: `; "" if unknown."""
    return _NAMES.get(xid, "")


def grade_of(xid: int, said: str) -> Grade:
    """Return the severity of an Xid; `said` is the rest of its line. An unknown one is critical."""
    if xid in SHOWN:
        return Grade.SHOWN
    if xid in NOTES:
        return Grade.NOTE
    if xid in _LINKS and "Nonfatal" in said.split():
        return Grade.NOTE
    if xid == RECOVERY and said.rstrip(". ").endswith(_HARMLESS):
        return Grade.NOTE
    return Grade.CRITICAL


_LINKS: Final = range(144, 151)
_HARMLESS: Final = ("(None)", "(Drain P2P)")
