"""Store hold: the disk stops answering for three seconds (F1, F5, F6, D8).

Two publishers meet the same disk. The patient one is held by credit: it is told nothing, sends
nothing more, and goes on when the disk does. The impatient one asks first and is refused at once,
in words, as soon as the commit has been under way for a second. Nobody is confirmed before the
sync that covers his message returned, and what was refused is not in the log.
"""

from typing import Final

from penstock.demo.actors import Publishing
from penstock.demo.scenes.house import House
from penstock.model.ids import size_text
from penstock.model.refusal import RefusalKind
from penstock.server.faults import FaultOrder

HOLD_MS: Final = 3000
PER_SECOND: Final = 2000


async def play(house: House) -> None:
    topic = house.topic("orders")
    patient = house.publisher("patient", topic, per_second=PER_SECOND)
    hasty = house.publisher("hasty", topic, per_second=PER_SECOND, is_fast_failing=True)
    consumer = house.consumer("reader", topic)
    await house.wait(1.5)
    await _hold(house, patient, hasty)
    await _release(house, patient, hasty)
    await house.check_nothing_lost([patient, hasty], consumer)


async def _hold(house: House, patient: Publishing, hasty: Publishing) -> None:
    house.order(FaultOrder("store-hold", ms=HOLD_MS))
    await house.wait(0.6)
    before = len(patient.confirmed_numbers) + len(hasty.confirmed_numbers)
    await house.wait(1.4)
    page = await house.flow()
    after = len(patient.confirmed_numbers) + len(hasty.confirmed_numbers)
    blamed, sentence = page["diagnosis"]["kind"], page["diagnosis"]["sentence"]
    house.say(f"the broker says: {sentence}")
    house.check(
        "no confirm left while the disk was silent",
        after == before,
        f"{before:,} before, {after:,} after 1.4 s of silence",
    )
    house.check("the broker blamed the log", blamed == "log", sentence)
    house.check(
        "the hasty publisher was refused as busy, at once",
        {each.kind for each in hasty.refusals} == {RefusalKind.BUSY},
        f"{len(hasty.refusals):,} refusals: {hasty.refusals[0].text if hasty.refusals else '-'}",
    )
    pool = next(each for each in page["limits"] if each["name"] == "in-flight pool")
    house.check(
        "memory stayed within the pool",
        pool["used"] <= pool["limit"],
        f"{size_text(pool['used'])} of {size_text(pool['limit'])}",
    )


async def _release(house: House, patient: Publishing, hasty: Publishing) -> None:
    before = len(patient.confirmed_numbers)
    is_answering = await house.until(lambda: len(patient.confirmed_numbers) > before, 5)
    house.say("the disk answers again")
    is_going_on = is_answering and await house.until(
        lambda: len(patient.confirmed_numbers) > before + PER_SECOND, 5
    )
    patient.stop()
    hasty.stop()
    house.check(
        "the patient publisher was held, not refused",
        "flow" in " ".join(patient.gates) and not patient.refusals,
        f"held for: {'; '.join(dict.fromkeys(patient.gates)) or 'nothing'}",
    )
    house.check("both went on when the disk did", is_going_on)
