"""What can go wrong when sampling."""

from __future__ import annotations

from kitlib.errors import KitError


class SampleError(KitError, RuntimeError):
    """`sample` cannot give a batch, now or ever; the message says why."""


class SamplerArgumentError(KitError, ValueError, AssertionError):
    """A setting of the sampler that makes no sense (verl raises ValueError for some of them and asserts others)."""


class UnknownStatusError(KitError, ValueError):
    """A prompt marker with a status word outside pending, running, finished, failure."""


class MarkerTagError(KitError, KeyError):
    """A prompt marker that lacks a tag the sampler reads."""

    __str__ = Exception.__str__  # KeyError would print the repr of the sentence
