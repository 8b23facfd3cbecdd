"""Settings of the process itself: where it keeps its data and how it makes itself known."""

from dataclasses import dataclass

from penstock.model.errors import SettingsError
from penstock.settings.declare import setting


@dataclass(frozen=True, slots=True)
class BrokerSettings:
    """Directory, name and switches of one broker process."""

    data: str = setting(
        "./penstock-data", "Directory of the log and the catalog; made if missing", flag="--data"
    )
    name: str = setting("penstock", "Name of this broker in logs and to clients that ask for one")
    faults: bool = setting(
        False, "D26: let `penstock fault` make the disk or a queue misbehave", flag="--faults"
    )
    ready_file: str = setting(
        "",
        "D21: also write pid and endpoints here, as JSON, once every listener accepts",
        flag="--ready-file",
    )
    stop_ms_max: int = setting(10_000, "A clean stop waits this long for peers and the last sync")
    log_level: str = setting("info", "What is logged: debug, info, warning or error")
    is_log_json: bool = setting(False, "Log lines as JSON, one object per line")

    def __post_init__(self) -> None:
        if not self.data:
            raise SettingsError("broker.data is empty; name a directory, as ./penstock-data")
        if not self.name:
            raise SettingsError("broker.name is empty; give the broker a name")
        if self.log_level not in ("debug", "info", "warning", "error"):
            raise SettingsError(
                f"broker.log_level is {self.log_level!r}; use debug, info, warning or error"
            )
