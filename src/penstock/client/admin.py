"""``Admin``: topics, groups, offsets, lag and single messages, for operators and scripts.

    with Admin("127.0.0.1:9876") as admin:
        admin.create_topic("orders", queues=4)
        admin.lag("billing", "orders")
        admin.reset_offsets("billing", "orders", "earliest")
        admin.messages_by_key("orders", "order-4711")

Every method has a twin ending in ``_async``.

Not here: the parts (``admin_topics.py``, ``admin_groups.py``, ``admin_messages.py``).
"""

from penstock.client.admin_groups import GroupAdmin
from penstock.client.admin_messages import MessageAdmin
from penstock.client.admin_topics import TopicAdmin


class Admin(TopicAdmin, GroupAdmin, MessageAdmin):
    """An operator's view of a cluster; it belongs to no group and disturbs nobody.

    ``Admin("127.0.0.1:9876")``; several name servers are a list, or one text with semicolons.
    """
