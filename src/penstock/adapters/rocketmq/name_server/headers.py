"""``ext`` of requests that only a name server gets."""

from penstock.wire.rocketmq.headers import I64, Header


class KeyValueHeader(Header, gc=False, kw_only=True, rename="camel"):
    """PUT, GET and DELETE_KV_CONFIG, GET_KVLIST_BY_NAMESPACE."""

    namespace: str
    key: str = ""
    value: str = ""


class ClusterHeader(Header, gc=False, kw_only=True, rename="camel"):
    """GET_TOPICS_BY_CLUSTER."""

    cluster: str


class BrokerHeader(Header, gc=False, kw_only=True, rename="camel"):
    """REGISTER_BROKER, UNREGISTER_BROKER, QUERY_DATA_VERSION, BROKER_HEARTBEAT."""

    broker_name: str
    broker_addr: str = ""
    cluster_name: str = ""
    ha_server_addr: str = ""
    broker_id: I64 = 0
    heartbeat_timeout_millis: I64 = 0
    compressed: bool = False
    body_crc32: I64 = 0
    is_complete: bool = False
    """Ours: a topic that is not in the registration is gone."""


class BrokerNameHeader(Header, gc=False, kw_only=True, rename="camel"):
    """WIPE_WRITE_PERM_OF_BROKER, ADD_WRITE_PERM_OF_BROKER."""

    broker_name: str


class DeleteTopicHeader(Header, gc=False, kw_only=True, rename="camel"):
    """DELETE_TOPIC_IN_NAMESRV."""

    topic: str
    cluster_name: str = ""
