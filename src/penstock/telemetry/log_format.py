"""How log lines look: text for people, JSON for machines, the same facts in both.

A message is a constant sentence; what it is about (connection, topic, reason) travels in ``extra``
and is shown after it, so that lines can be searched by message and filtered by field.
"""

import json
import logging
import time
from typing import Final

_STANDARD: Final = frozenset(
    (*vars(logging.makeLogRecord({})), "message", "asctime", "taskName", "color_message")
)
"""Attributes every record has; all others came in ``extra``."""


def extra_of(record: logging.LogRecord) -> dict[str, object]:
    """The fields a caller gave beside the message."""
    return {name: value for name, value in vars(record).items() if name not in _STANDARD}


class TextFormatter(logging.Formatter):
    """``2026-11-15 21:22:23.456 WARNING listener: message  connection=7 reason='...'``."""

    def format(self, record: logging.LogRecord) -> str:
        """One line, and the traceback under it if there is one."""
        stamp = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(record.created))
        where = record.name.removeprefix("penstock.")
        message = _on_one_line(record.getMessage())
        line = f"{stamp}.{int(record.msecs):03d} {record.levelname} {where}: {message}"
        fields = " ".join(f"{name}={_short(value)}" for name, value in extra_of(record).items())
        if fields:
            line = f"{line}  {fields}"
        if record.exc_info:
            line = f"{line}\n{self.formatException(record.exc_info)}"
        return line


class JsonFormatter(logging.Formatter):
    """One JSON object per line."""

    def format(self, record: logging.LogRecord) -> str:
        """The record as an object; the traceback is a string field."""
        line: dict[str, object] = {
            "time": round(record.created, 3),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            **extra_of(record),
        }
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        return json.dumps(line, default=str, ensure_ascii=False)


def set_up_logging(level: str, *, is_json: bool) -> None:
    """Log to stderr; what libraries say below a warning is not ours to repeat."""
    handler = logging.StreamHandler()
    handler.setFormatter(JsonFormatter() if is_json else TextFormatter())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(logging.WARNING)
    # Every port scan is a warning to uvicorn; it is none to an operator.
    logging.getLogger("uvicorn").setLevel(logging.ERROR)
    logging.getLogger("penstock").setLevel(level.upper())


def _short(value: object) -> str:
    """Peers choose some values: what is quoted cannot pass for a field, or a line, of ours."""
    text = str(value)
    return repr(text) if " " in text or not text or not text.isprintable() else text


def _on_one_line(text: str) -> str:
    """A message without what ends a line or moves a terminal's cursor."""
    if text.isprintable():
        return text
    return "".join(each if each.isprintable() else repr(each)[1:-1] for each in text)
