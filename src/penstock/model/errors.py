"""Every error Penstock raises.

PenstockError
 +-- SettingsError        a setting is unknown or wrong; nothing was started
 +-- StartRefused         the broker cannot start here (port taken, directory locked or unwritable)
 +-- LogError             the log cannot be trusted or used
 |    +-- AppendFailed    a frame was not written (disk full, short write); none of it is stored
 |    +-- SyncFailed      an fdatasync failed: what it covered is never called good (P4)
 |    +-- LogCorrupt      the data directory cannot be opened as it is
 |    +-- FormatTooNew    written by a newer Penstock; never rewritten
 +-- NotFound             a named topic, queue, subscription or consumer does not exist
 +-- AlreadyExists        the name is taken by something different
 +-- SelectorInvalid      a filter expression cannot be compiled; nothing was subscribed
 +-- InvariantBroken      our own mistake: logged, and the process stops rather than lies

A message says what happened, to which named thing, and what to do next. Refusals under load are
values (``refusal.py``), not errors.
"""


class PenstockError(Exception):
    """Root of all errors raised by Penstock."""


class SettingsError(PenstockError):
    """A setting is unknown or has a wrong value."""


class StartRefused(PenstockError):
    """The broker cannot start in this environment."""


class LogError(PenstockError):
    """The log cannot be trusted or used."""


class AppendFailed(LogError):
    """A frame was not written; the file was put back to where it was."""


class SyncFailed(LogError):
    """An fdatasync failed; the bytes it covered are unknown."""


class LogCorrupt(LogError):
    """The data directory cannot be opened as it is."""


class FormatTooNew(LogError):
    """The data directory was written by a newer version."""


class NotFound(PenstockError):
    """A named object does not exist."""


class AlreadyExists(PenstockError):
    """The name is taken by something different."""


class SelectorInvalid(PenstockError):
    """A filter expression cannot be compiled; the text says where and why."""


class InvariantBroken(PenstockError):
    """A rule of our own was violated; the process must stop."""
