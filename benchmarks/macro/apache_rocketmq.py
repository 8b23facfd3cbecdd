"""Apache RocketMQ's broker for the same run: jars by Maven in a cache, small heap, SYNC_FLUSH.

Nothing of it is part of this repository. Without Java, Maven or its central repository there is
nothing to compare with, and ``Unavailable`` says why.
"""

import contextlib
import os
import shutil
import socket
import subprocess
import tempfile
import time
from pathlib import Path

VERSION = "5.3.1"
HEAP = "512m"
START_SECONDS_MAX = 60
MAVEN_SECONDS_MAX = 600

POM = """<project><modelVersion>4.0.0</modelVersion>
<groupId>penstock</groupId><artifactId>bench</artifactId><version>1</version>
<dependencies><dependency><groupId>org.apache.rocketmq</groupId>
<artifactId>rocketmq-broker</artifactId><version>{version}</version></dependency></dependencies>
</project>
"""

SETTINGS = """brokerName=apache
brokerIP1=127.0.0.1
listenPort={port}
storePathRootDir={store}
storePathCommitLog={store}/commitlog
flushDiskType=SYNC_FLUSH
mappedFileSizeCommitLog=268435456
autoCreateTopicEnable=true
diskMaxUsedSpaceRatio=95
waitTimeMillsInSendQueue=5000
"""
"""A longer wait in the send queue than usual: refusals would make the figure meaningless."""


class Unavailable(Exception):
    pass


def jars(cache):
    """The directory with the broker's jars, filled on first use."""
    for tool in ("java", "mvn"):
        if shutil.which(tool) is None:
            raise Unavailable(f"{tool} is not installed")
    target = cache / f"rocketmq-{VERSION}"
    if (target / "complete").exists():
        return target
    target.mkdir(parents=True, exist_ok=True)
    (target / "pom.xml").write_text(POM.format(version=VERSION))
    command = ["mvn", "-q", "-B", "dependency:copy-dependencies", f"-DoutputDirectory={target}"]
    try:
        done = subprocess.run(
            command, cwd=target, capture_output=True, text=True, timeout=MAVEN_SECONDS_MAX,
            check=False,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        raise Unavailable(f"Maven took longer than {MAVEN_SECONDS_MAX} s") from None
    if done.returncode:
        raise Unavailable(f"Maven failed: {(done.stdout + done.stderr).strip()[-300:]}")
    (target / "complete").touch()
    return target


@contextlib.contextmanager
def apache_broker(cache, directory):
    """(host, port, pid) of a broker with an empty store on the same disk as ours."""
    classes = jars(Path(cache))
    with tempfile.TemporaryDirectory(prefix="apache-rocketmq-", dir=directory) as home:
        port = _free_port()
        conf = Path(home, "broker.conf")
        conf.write_text(SETTINGS.format(port=port, store=Path(home, "store")))
        output = Path(home, "output")
        command = [
            "java", f"-Xms{HEAP}", f"-Xmx{HEAP}", f"-Duser.home={home}", "-cp", f"{classes}/*",
            "org.apache.rocketmq.broker.BrokerStartup", "-c", str(conf),
        ]  # fmt: skip
        with output.open("wb") as out:
            process = subprocess.Popen(
                command, stdout=out, stderr=subprocess.STDOUT, cwd=home,
                env={**os.environ, "ROCKETMQ_HOME": home},
            )  # fmt: skip
        try:
            _wait_for(port, process, output)
            yield "127.0.0.1", port, process.pid
        finally:
            process.kill()
            process.wait()


def _free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def _wait_for(port, process, output):
    until = time.monotonic() + START_SECONDS_MAX
    while time.monotonic() < until:
        with contextlib.suppress(OSError):
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
            return
        if process.poll() is not None:
            break
        time.sleep(0.2)
    raise Unavailable(f"it did not start: {output.read_text(errors='replace')[-500:]}")
