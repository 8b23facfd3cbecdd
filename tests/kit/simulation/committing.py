"""Steps of the broker itself: turns, the commit thread, and time going by."""

from kit.simulation.laws import check_turn, free_queues
from kit.simulation.ledger import LawBroken
from kit.simulation.world import World


def turn(world: World) -> None:
    """One turn of the engine."""
    now_ms = world.clock.monotonic_ms()
    for consumer in world.consumers:
        consumer.now_ms = now_ms
    free_before = free_queues(world)
    world.engine.turn()
    world.turns += 1
    check_turn(world, free_before)
    world.trace.note(f"turn {world.store.end_position} {world.store.durable_position}")


def sync(world: World) -> None:
    """The commit thread does its next thing: take a job, run it, report it."""
    start_job(world)
    if world.rng.random() < 0.85:
        run_job(world)
    if world.rng.random() < 0.85:
        finish_job(world)


def start_job(world: World) -> None:
    """Take a job if none is under way."""
    if world.job is None:
        world.job = world.engine.take_sync_job()
        world.is_job_run = False
        world.job_error = None


def run_job(world: World) -> None:
    """The disk does its work."""
    if world.job is not None and not world.is_job_run:
        world.is_job_run = True
        try:
            world.job.run()
        except Exception as error:  # any failure means "not durable"
            world.job_error = error


def finish_job(world: World) -> None:
    """The engine hears of it; a failed one ends this life of the broker (P4)."""
    job = world.job
    if job is None or not world.is_job_run:
        return
    world.job = None
    world.engine.synced(job, world.job_error)
    world.trace.note(f"synced {world.store.durable_position} {world.job_error is None}")
    if world.job_error is not None:
        _check_failed(world)
        world.storage.plan.clear()
        # Pages of a failed sync read back well although the medium does not have them, and no
        # process can tell: such a life ends with a reboot.
        world.restart(is_power_cut=True)


def _check_failed(world: World) -> None:
    """After a failed sync nothing is called good any more, whatever else succeeds (P4)."""
    confirmed = world.ledger.confirmed_count
    turn(world)
    start_job(world)
    run_job(world)
    if world.job is not None:
        world.engine.synced(world.job, None)
    turn(world)
    if not world.engine.is_failed or world.ledger.confirmed_count != confirmed:
        raise LawBroken("a failed sync was followed by confirms (P4)")


def advance(world: World) -> None:
    """Time goes by; now and then the wall clock is set."""
    world.clock.advance(world.rng.choice((1, 5, 20, 100, 600)))
    if world.rng.random() < 0.1:
        world.clock.jump_wall(world.rng.choice((-3_600_000, -1000, 1000, 3_600_000)))
    world.trace.note(f"time {world.clock.monotonic_ms()} {world.clock.wall_ms()}")
