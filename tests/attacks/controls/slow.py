"""Repairs the bug by code so slow that every run of the tests takes longer than their processor time may be."""

import tiny_image
from attack import Control, code

SLOW = """
_clamp = clamp

def clamp(value, low, high):
    import time
    time.sleep(0.8)
    return _clamp(value, low, high)
"""
CONTROL = Control((tiny_image.FIX, code(SLOW)), timeout_s=2)
