"""Declaring again and again: what is the same, what is refused and how, against a small model.

Two connections declare, delete and leave at random; a restart keeps what is durable. The model
knows a queue by its flags, its owner and those of its arguments that count.
"""

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    rule,
    run_state_machine_as_test,
)

from kit.amqp.peer import AmqpBench
from penstock.adapters.amqp.topology.queue_registry import Declaration
from penstock.wire.amqp.codes import AmqpError

NAMES = st.sampled_from(["a", "b", "foreign"])
PEOPLE = st.sampled_from([1, 2])
ARGUMENTS = st.fixed_dictionaries(
    {},
    optional={
        "x-max-length": st.sampled_from([5, 6]),
        "x-message-ttl": st.sampled_from([0, 1000]),
        "x-overflow": st.sampled_from(["drop-head", "reject-publish"]),
        "x-queue-type": st.just("classic"),
        "x-foo": st.integers(0, 1),
    },
)


class Client:
    def __init__(self, connection_id):
        self.connection_id = connection_id
        self.maker = ""


def counted(arguments):
    """The arguments that must be repeated: ``x-foo`` is nobody's, classic goes without saying."""
    return {
        name: value for name, value in arguments.items() if name not in ("x-foo", "x-queue-type")
    }


class Declarations(RuleBasedStateMachine):
    @initialize()
    def begin(self):
        self.bench = AmqpBench()
        self.bench.topic("foreign")
        self.bench.settle()
        self.clients = {number: Client(number) for number in (1, 2)}
        self.known = {}

    @property
    def book(self):
        return self.bench.broker.vhosts["/"].queues

    def expected(self, name, owner, wanted):
        """The code that a declaration earns; 0 when it is welcome."""
        if name == "foreign":
            if owner is not None:
                return 405
            others = [each for each in wanted.arguments if each != "x-queue-type"]
            return 406 if others else 0
        if name not in self.known:
            return 0
        found = self.known[name]
        if found[0] != owner:
            return 405
        is_durable = wanted.is_durable and owner is None
        asked = (owner, is_durable, wanted.is_auto_delete, counted(wanted.arguments))
        return 0 if found == asked else 406

    @rule(
        who=PEOPLE,
        name=NAMES,
        is_durable=st.booleans(),
        is_exclusive=st.booleans(),
        is_auto_delete=st.booleans(),
        arguments=ARGUMENTS,
        repeats=st.booleans(),
    )
    def declare(self, *, who, name, is_durable, is_exclusive, is_auto_delete, arguments, repeats):
        owner = who if is_exclusive else None
        wanted = Declaration(name, is_durable, is_exclusive, is_auto_delete, arguments)
        if repeats and name in self.known:
            # The same again, with what does not count left as it comes.
            owner, is_durable, is_auto_delete, said = self.known[name]
            who = owner or who
            extra = {key: arguments[key] for key in arguments if key in ("x-foo", "x-queue-type")}
            wanted = Declaration(
                name, is_durable, owner is not None, is_auto_delete, {**said, **extra}
            )
        code = self.expected(name, owner, wanted)
        try:
            queue = self.book.declare(wanted, self.clients[who])
        except AmqpError as problem:
            found = int(problem.code)
        else:
            found = 0
            assert queue.name == name
        assert found == code
        if code == 0 and name != "foreign":
            asked = (
                owner,
                wanted.is_durable and owner is None,
                wanted.is_auto_delete,
                counted(wanted.arguments),
            )
            self.known.setdefault(name, asked)

    @rule(name=NAMES)
    def delete(self, name):
        queue = self.book.get(name)
        if queue is not None:
            self.book.delete(queue)
        self.known.pop(name, None)

    @rule(who=PEOPLE)
    def leave(self, who):
        self.book.connection_closed(who)
        self.known = {name: each for name, each in self.known.items() if each[0] != who}

    @rule()
    def restart(self):
        self.bench.settle()
        self.bench.kill()
        self.known = {name: each for name, each in self.known.items() if each[1]}

    @invariant()
    def there_are_those_that_should_be(self):
        if hasattr(self, "bench"):
            assert {queue.name for queue in self.book} == {*self.known, "foreign"}
            for name, (owner, is_durable, is_auto_delete, _) in self.known.items():
                queue = self.book.get(name)
                assert (queue.owner, queue.is_durable, queue.is_auto_delete) == (
                    owner,
                    is_durable,
                    is_auto_delete,
                )


def test_declaring_again_is_welcome_exactly_when_it_says_the_same(is_long):
    run_state_machine_as_test(
        Declarations,
        settings=settings(
            max_examples=1_000 if is_long else 40, stateful_step_count=25, deadline=None
        ),
    )
