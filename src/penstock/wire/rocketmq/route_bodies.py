"""JSON bodies about brokers and topics: routes, clusters, topic lists, broker registration.

The order of fields is fixed: ali-ons compares routes as text.

Not here: groups and queues (``bodies.py``), reading and writing JSON (``lenient_json.py``).
"""

from enum import IntFlag
from typing import Final

import msgspec

from penstock.wire.rocketmq.bodies import Body

MASTER: Final = "0"
"""The broker id a producer looks for."""


class Perm(IntFlag):
    """What may be done with the queues of a topic."""

    INHERIT = 1
    WRITE = 2
    READ = 4
    PRIORITY = 8


class QueueData(Body, gc=False, kw_only=True, rename="camel"):
    """The queues of a topic on one broker."""

    broker_name: str
    read_queue_nums: int
    write_queue_nums: int
    perm: int = int(Perm.READ | Perm.WRITE)
    topic_sys_flag: int = 0


class BrokerData(Body, gc=False, kw_only=True, rename="camel"):
    """Where a broker listens, by broker id."""

    cluster: str = ""
    broker_name: str
    broker_addrs: dict[str, str] = {}
    enable_acting_master: bool = False


class TopicRouteData(Body, gc=False, kw_only=True, rename="camel"):
    """Answer to GET_ROUTEINFO_BY_TOPIC."""

    order_topic_conf: str | None = None
    queue_datas: list[QueueData] = []
    broker_datas: list[BrokerData] = []
    filter_server_table: dict[str, list[str]] = {}


class Cluster(Body, gc=False, kw_only=True, rename="camel"):
    """Answer to GET_BROKER_CLUSTER_INFO."""

    broker_addr_table: dict[str, BrokerData] = {}
    cluster_addr_table: dict[str, list[str]] = {}


class TopicList(Body, gc=False, kw_only=True, rename="camel"):
    """Answer to the requests that list topics."""

    topic_list: list[str] = []
    broker_addr: str | None = None


class KeyValueTable(Body, gc=False, kw_only=True, rename="camel"):
    """Answer to GET_KVLIST_BY_NAMESPACE and REGISTER_BROKER."""

    table: dict[str, str] = {}


class DataVersion(Body, gc=False, kw_only=True, rename="camel"):
    """By which a name server sees that a broker's topics changed."""

    state_version: int = 0
    timestamp: int = 0
    counter: int = 0


class TopicConfig(Body, gc=False, kw_only=True, rename="camel"):
    """One topic of a broker that registers."""

    topic_name: str
    read_queue_nums: int = 16
    write_queue_nums: int = 16
    perm: int = int(Perm.READ | Perm.WRITE)
    topic_filter_type: str = "SINGLE_TAG"
    topic_sys_flag: int = 0
    order: bool = False
    attributes: dict[str, str] = {}


class TopicConfigTable(Body, gc=False, kw_only=True, rename="camel"):
    """All topics of a broker that registers."""

    topic_config_table: dict[str, TopicConfig] = {}
    data_version: DataVersion = msgspec.field(default_factory=DataVersion)


class RegisterBrokerBody(Body, gc=False, kw_only=True, rename="camel"):
    """REGISTER_BROKER; deflated when the header says ``compressed``."""

    topics: TopicConfigTable = msgspec.field(
        name="topicConfigSerializeWrapper", default_factory=TopicConfigTable
    )
    filter_server_list: list[str] = []
