# SPDX-License-Identifier: Apache-2.0

"""Every exception that this library raises on purpose.

They have one root, :class:`GpuDriverError`, so that a caller can tell them
from a programming error. Each class formats its own message from keyword
arguments: what was wrong, where, and what would be right.
"""

import re

_OBJECT = re.compile(' object at 0x[0-9a-f]+')


class GpuDriverError(Exception):
    """Root of this library's exceptions.

    Created from the values that the class's ``template`` names. It can be
    created again from its ``args`` alone, because oslo.privsep transfers
    only those from the privileged process.
    """

    template = 'An unexpected error occurred'

    def __init__(self, message=None, values=None, **kwargs):
        self.kwargs = dict(values or {}, **{
            key: value if isinstance(value, int) else str(value)
            for key, value in kwargs.items()})
        self.message = message or self.template.format(**self.kwargs)
        super().__init__(self.message, self.kwargs)

    def __str__(self):
        return self.message


class InvalidValue(GpuDriverError):
    """Input (an argument, an RPC string, a file's entry) is malformed."""

    template = '{what} {value!r} is not valid: {expected}'


class InvalidConfiguration(GpuDriverError):
    """An option's value cannot be used."""

    template = '[{group}] {option} = {value}: {reason}'


class NvmlError(GpuDriverError):
    """An NVML call answered with an error.

    ``code`` is the number of ``nvmlReturn_t`` (nvml.h), ``call`` the name of
    the pynvml function, ``symbol`` the code's name without ``NVML_ERROR_``.
    """

    template = '{call} failed: {symbol} ({code})'

    code = property(lambda self: self.kwargs['code'])
    call = property(lambda self: self.kwargs['call'])
    symbol = property(lambda self: self.kwargs['symbol'])


class NvmlNotAnswering(NvmlError):
    """A call of NVML, or a write to a file of the driver, takes too long.

    The change that it requests may have happened, or may still happen.
    """

    template = ('{owner} does not answer: {call} did not return within '
                '{seconds} s')

    code, symbol = -1, 'NOT_ANSWERING'
    """Not in ``nvmlReturn_t``, because there is no answer."""


class NvmlClosed(NvmlError):
    """NVML may not be opened now; the ``call`` is nvmlInit."""

    template = ("{who} keeps NVML closed, for a reset or a change of a GPU's "
                'mode or driver')


class FabricError(GpuDriverError):
    """The fabric manager refused a call (``symbol``) or is unreachable."""

    template = '{call} failed: {symbol}: {reason}'
    symbol = property(lambda self: self.kwargs['symbol'])


class SysfsError(GpuDriverError):
    """Reading or writing a file of sysfs failed.

    ``errno`` is the kernel's answer (errno.EIO and so on).
    """

    template = '{action} {path}: {reason} (errno {errno})'

    errno = property(lambda self: self.kwargs['errno'])


class UnknownGpu(GpuDriverError):
    """No GPU of this machine has that address, index or UUID."""

    template = 'no NVIDIA GPU at {address} on this machine'


class BindRefused(GpuDriverError):
    """A bind cannot be carried out; nothing has been changed."""

    template = ('cannot bind {handle} as {asked_type} on {address}: '
                '{reason}')


class BindAbandoned(BindRefused):
    """No caller waits for a bind any more; the bind is rolled back."""


class JournalError(GpuDriverError):
    """The journal cannot be read or written."""

    template = 'record {path}: {reason}'


class JournalUnreadable(JournalError):
    """This process cannot read the journal, which may be intact."""


class LockTimeout(JournalError):
    """Another holder did not release a lock in time."""

    template = ('{what} is locked: {holder} did not release it within '
                '{seconds} s')


class DocumentError(GpuDriverError):
    """A document from outside (a file, an answer) cannot be used."""

    template = '{source}: {where}: {problem}; {expected}'


class ChangeRefused(GpuDriverError):
    """A change of a GPU cannot be made; nothing has been changed."""

    template = 'GPU {gpu}: {reason}; nothing was changed'


class ChangeFailed(GpuDriverError):
    """A change of a GPU failed; ``outcome`` says in what state the GPU is."""

    template = 'GPU {gpu}: {step} failed: {reason}; {outcome}'


class StepFailed(GpuDriverError):
    """A step of a change, or a program that it needs, failed."""

    template = '{reason}'


class VgpuNotCreatable(StepFailed):
    """A driver cannot create a vGPU of a type on a virtual function now."""

    template = ('the driver cannot create {vgpu} on {function} now; it can '
                'create {creatable}')


class HostUnusable(GpuDriverError):
    """The program cannot work on GPUs of this machine, real or simulated."""

    template = 'this host: {reason}'


class PlacementRefused(GpuDriverError):
    """Placement gave an unexpected answer."""

    template = 'Placement refused {what}: HTTP {code} {text}'


class UsageUnknown(GpuDriverError):
    """The users of something are unknown: callers treat it as in use."""

    template = 'cannot find the users of {what}: {reason}'


class CloudError(GpuDriverError):
    """A cloud does not answer, refuses this user, or gives wrong values."""

    template = 'cloud {cloud}: {reason}'


class GpuInUse(GpuDriverError):
    """A GPU, or a vGPU on it, is in use."""

    template = 'GPU {gpu} is in use: {reason}'


class DriverStuck(StepFailed):
    """A kernel driver does not release a function, and cannot be stopped.

    ``state`` says what driver the function has.
    """

    template = '{address}: {reason}; {state}'


def steady(error: BaseException) -> str:
    """The text of an error without the parts that differ each time.

    Texts of urllib3, which OpenStack's clients pass on, contain addresses
    of objects.
    """
    return _OBJECT.sub('', str(error))
