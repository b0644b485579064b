"""What ends the conversion of one file, in words for whoever sent it."""

from __future__ import annotations


class DocumentRefused(Exception):
    """This file is not converted. The text says why, names limits, and repeats nothing of the file or of a library."""
