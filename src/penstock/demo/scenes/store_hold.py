"""Store hold: the disk stops answering for some seconds (F1, F5, F6, D8).

Two publishers meet the same disk. The patient one is held by credit: it is told nothing, sends
nothing more, and goes on when the disk does. The impatient one asks first and is refused at once,
in words, as soon as the commit has been under way for a second. Nobody is confirmed before the
sync that covers his message returned, and what was refused is not in the log.
"""

from typing import Final

from penstock.demo.actors import EnginePublisher
from penstock.demo.scenes.scene import SLOW_DISK, Blame, Scene
from penstock.model.ids import size_text
from penstock.model.refusal import RefusalKind
from penstock.server.faults import FaultOrder

HOLD_MS: Final = 20_000
"""Long enough for any machine; the hold is ended by hand."""
SILENT_SECONDS: Final = 1.4
PER_SECOND: Final = 2000


async def play(scene: Scene) -> None:
    topic = scene.topic("orders")
    patient = scene.publisher("patient", topic, per_second=PER_SECOND)
    hasty = scene.publisher("hasty", topic, per_second=PER_SECOND, is_fast_failing=True)
    consumer = scene.consumer("reader", topic)
    await scene.wait(1.5)
    await _hold(scene, patient, hasty)
    await _release(scene, patient, hasty)
    await scene.check_nothing_lost([patient, hasty], consumer)


async def _hold(scene: Scene, patient: EnginePublisher, hasty: EnginePublisher) -> None:
    scene.order(FaultOrder("store-hold", ms=HOLD_MS))
    await scene.wait(0.6)
    before = len(patient.confirmed_numbers) + len(hasty.confirmed_numbers)
    page = await scene.check_answer("the broker blamed the log", Blame("holding", SLOW_DISK, "log"))
    await scene.wait(SILENT_SECONDS)
    after = len(patient.confirmed_numbers) + len(hasty.confirmed_numbers)
    scene.check(
        "no confirm left while the disk was silent",
        after == before,
        f"{before:,} before, {after:,} after {SILENT_SECONDS} s of silence",
    )
    scene.check(
        "the hasty publisher was refused as busy, at once",
        {each.kind for each in hasty.refusals} == {RefusalKind.BUSY},
        f"{len(hasty.refusals):,} refusals: {hasty.refusals[0].text if hasty.refusals else '-'}",
    )
    pool = next(each for each in page["limits"] if each["name"] == "in-flight pool")
    scene.check(
        "memory stayed within the pool",
        pool["used"] <= pool["limit"],
        f"{size_text(pool['used'])} of {size_text(pool['limit'])}",
    )


async def _release(scene: Scene, patient: EnginePublisher, hasty: EnginePublisher) -> None:
    before = len(patient.confirmed_numbers)
    scene.order(FaultOrder("clear"))
    is_answering = await scene.until(lambda: len(patient.confirmed_numbers) > before, 5)
    scene.say("the disk answers again")
    is_going_on = is_answering and await scene.until(
        lambda: len(patient.confirmed_numbers) > before + PER_SECOND, 5
    )
    patient.stop()
    hasty.stop()
    scene.check(
        "the patient publisher was held, not refused",
        "flow" in " ".join(patient.gates) and not patient.refusals,
        f"held for: {'; '.join(dict.fromkeys(patient.gates)) or 'nothing'}",
    )
    scene.check("both went on when the disk did", is_going_on)
