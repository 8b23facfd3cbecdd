"""``/api/topics`` and ``/api/groups``: see and change them. Neither is a path of RabbitMQ's API.

======  =====================================  =============================================
GET     /api/topics ?offset ?contains ?hidden  a page of topics
POST    /api/topics                            create: {"name", "space", "queues"}
GET     /api/topics/NAME ?space                one topic with queues and groups
DELETE  /api/topics/NAME ?space                with its messages
POST    /api/topic-policies                    {"topic", "space", "spark_backpressure", ...}
GET     /api/queries                           Spark queries: position, lag, rate, lease, last batch
DELETE  /api/queries/NAME                      forget one, with its positions
GET     /api/groups ?offset ?contains ?hidden  a page of (group, topic) with lag
GET     /api/groups/NAME                       its topics, queue by queue
DELETE  /api/groups/NAME ?topic ?space         from one topic or from all
POST    /api/group-offsets                     reset: {"group", "topic", "space", "to", "queue"}
POST    /api/group-modes                       {"group", "topic", "mode", "share"}, this broker only
GET     /api/places                            its name and address in clusters, and name servers
======  =====================================  =============================================

Names may hold slashes, so nothing comes behind one in a path. Reading is free like ``/api/flow``;
changes are for this machine (``loopback.py``) and answered once they would survive a crash.
"""

import asyncio
from collections.abc import Callable
from typing import Any, Final, TypeVar

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from penstock.model.errors import AlreadyExists, NotFound, PenstockError
from penstock.server.administration import Administration
from penstock.server.http.loopback import json_body, problem, refusal

DURABLE_SECONDS_MAX: Final = 10.0
_WHAT: Final = "topics and groups are changed"


class CreateTopic(msgspec.Struct, forbid_unknown_fields=True):
    """A topic to make."""

    name: str
    space: str = ""
    queues: int = 4


class ResetGroup(msgspec.Struct, forbid_unknown_fields=True):
    """A group to move."""

    group: str
    topic: str
    space: str = ""
    to: str | int = "latest"
    queue: int | None = None


class SetMode(msgspec.Struct, forbid_unknown_fields=True):
    """Pop or pull."""

    group: str
    topic: str
    mode: str
    space: str = ""
    share: int = -1


class SetPolicy(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True):
    """Rules of a topic to change; what is left out stays, -1 and "" mean "as in the settings"."""

    topic: str
    space: str = ""
    spark_backpressure: str | None = None
    spark_backlog_messages_max: int | None = None
    spark_backlog_bytes_max: int | None = None
    spark_backlog_age_ms_max: int | None = None


Order = TypeVar("Order", bound=msgspec.Struct)


class AdminApi:
    """The handlers of one broker."""

    def __init__(self, administration: Administration) -> None:
        self._admin = administration

    def routes(self) -> list[Route]:
        """What it answers to."""
        return [
            Route("/api/topics", self.topics, methods=["GET"]),
            Route("/api/topics", self.create_topic, methods=["POST"]),
            Route("/api/topic-policies", self.set_policy, methods=["POST"]),
            Route("/api/queries", self.queries, methods=["GET"]),
            Route("/api/queries/{name:path}", self.forget_query, methods=["DELETE"]),
            Route("/api/topics/{name:path}", self.topic, methods=["GET"]),
            Route("/api/topics/{name:path}", self.delete_topic, methods=["DELETE"]),
            Route("/api/groups", self.groups, methods=["GET"]),
            Route("/api/groups/{name:path}", self.group, methods=["GET"]),
            Route("/api/groups/{name:path}", self.delete_group, methods=["DELETE"]),
            Route("/api/group-offsets", self.reset_group, methods=["POST"]),
            Route("/api/group-modes", self.set_mode, methods=["POST"]),
            Route("/api/places", self.places, methods=["GET"]),
        ]

    async def topics(self, request: Request) -> Response:
        """A page of topics."""
        return _answer(lambda: self._admin.topics(**_paging(request)))

    async def topic(self, request: Request) -> Response:
        """One topic."""
        name, space = request.path_params["name"], request.query_params.get("space", "")
        return _answer(lambda: self._admin.topic(name, space))

    async def create_topic(self, request: Request) -> Response:
        """Make one."""

        def create(order: CreateTopic) -> dict[str, str]:
            self._admin.create_topic(order.name, order.space, queues=order.queues)
            return {"done": f"topic '{order.name}' created with {order.queues} queues"}

        return await self._change(request, CreateTopic, create)

    async def delete_topic(self, request: Request) -> Response:
        """Remove one."""
        name, space = request.path_params["name"], request.query_params.get("space", "")

        def delete() -> dict[str, str]:
            self._admin.delete_topic(name, space)
            return {"done": f"topic '{name}' deleted with its messages"}

        return refusal(request, _WHAT) or await self._durable(delete)

    async def set_policy(self, request: Request) -> Response:
        """Change what is named."""

        def change(order: SetPolicy) -> dict[str, str]:
            given = msgspec.structs.asdict(order)
            topic, space = given.pop("topic"), given.pop("space")
            changes = {name: value for name, value in given.items() if value is not None}
            self._admin.set_spark_policy(topic, space, **changes)
            return {"done": f"topic '{topic}' has its new policy"}

        return await self._change(request, SetPolicy, change)

    async def queries(self, _request: Request) -> Response:
        """Every Spark query."""
        return _answer(lambda: {"queries": self._admin.queries()})

    async def forget_query(self, request: Request) -> Response:
        """Remove one."""
        name = request.path_params["name"]

        def forget() -> dict[str, str]:
            self._admin.forget_query(name)
            return {"done": f"query '{name}' forgotten"}

        return refusal(request, _WHAT) or await self._durable(forget)

    async def groups(self, request: Request) -> Response:
        """A page of groups."""
        return _answer(lambda: self._admin.groups(**_paging(request)))

    async def group(self, request: Request) -> Response:
        """One group."""
        name = request.path_params["name"]
        return _answer(lambda: {"group": name, "topics": self._admin.group(name)})

    async def delete_group(self, request: Request) -> Response:
        """Remove one."""
        name, query = request.path_params["name"], request.query_params

        def delete() -> dict[str, str]:
            count = self._admin.delete_group(name, query.get("topic"), query.get("space", ""))
            return {"done": f"group '{name}' deleted from {count} topics"}

        return refusal(request, _WHAT) or await self._durable(delete)

    async def reset_group(self, request: Request) -> Response:
        """Move one."""

        def reset(order: ResetGroup) -> dict[str, Any]:
            queues = self._admin.reset(
                order.group, order.topic, order.space, to=order.to, queue=order.queue
            )
            done = f"group '{order.group}' stands at {order.to} of '{order.topic}'"
            return {"done": done, "queues": queues}

        return await self._change(request, ResetGroup, reset)

    async def set_mode(self, request: Request) -> Response:
        """Pop or pull."""

        def change(order: SetMode) -> dict[str, str]:
            self._admin.set_mode(
                order.group, order.topic, order.space, mode=order.mode, share=order.share
            )
            return {"done": f"group '{order.group}' reads '{order.topic}' by {order.mode}"}

        return await self._change(request, SetMode, change)

    async def places(self, _request: Request) -> Response:
        """Where others of its clusters are asked for."""
        return _answer(self._admin.places)

    async def _change(
        self, request: Request, kind: type[Order], change: Callable[[Order], Any]
    ) -> Response:
        body = await json_body(request, _WHAT)
        if isinstance(body, Response):
            return body
        try:
            order = msgspec.json.decode(body, type=kind)
        except msgspec.MsgspecError as error:
            return problem(400, str(error))
        return await self._durable(lambda: change(order))

    async def _durable(self, change: Callable[[], Any]) -> Response:
        """Make a change and answer once the disk has it."""
        answer = _answer(change)
        if answer.status_code != 200:
            return answer
        is_durable = asyncio.Event()
        self._admin.after_durable(is_durable.set)
        try:
            await asyncio.wait_for(is_durable.wait(), DURABLE_SECONDS_MAX)
        except TimeoutError:
            return problem(503, "the change was made, but the disk has not taken it yet")
        return answer


def _paging(request: Request) -> dict[str, Any]:
    query = request.query_params
    offset = query.get("offset", "0")
    return {
        "offset": int(offset) if offset.isdecimal() and len(offset) < 10 else 0,
        "contains": query.get("contains", ""),
        "with_hidden": query.get("hidden", "") in ("1", "true"),
    }


def _answer(make: Callable[[], Any]) -> Response:
    try:
        content = msgspec.json.encode(make())
    except NotFound as error:
        return problem(404, str(error))
    except AlreadyExists as error:
        return problem(409, str(error))
    except PenstockError as error:
        return problem(400, str(error))
    return Response(content, media_type="application/json")
