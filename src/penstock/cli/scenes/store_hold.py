"""Store hold: the disk stops answering for three seconds (F1, F5, F6, D8).

Two publishers meet the same disk. The patient one is held by credit: it is told nothing, sends
nothing more, and goes on when the disk does. The impatient one asks first and is refused at once,
in words, as soon as the commit has been under way for a second. Nobody is confirmed before the
sync that covers his message returned, and what was refused is not in the log.
"""

from typing import Final

from penstock.cli.scenes.house import House
from penstock.model.refusal import RefusalKind
from penstock.server.faults import FaultOrder

HOLD_MS: Final = 3000
PER_SECOND: Final = 2000


async def play(house: House) -> None:
    """Run it."""
    topic = house.topic("orders")
    patient = house.publisher("patient", topic, per_second=PER_SECOND)
    hasty = house.publisher("hasty", topic, per_second=PER_SECOND, is_fast_failing=True)
    consumer = house.consumer("reader", topic)
    await house.wait(1.5)

    house.order(FaultOrder("store-hold", ms=HOLD_MS))
    await house.wait(0.6)
    confirmed_at_hold = len(patient.confirmed_numbers) + len(hasty.confirmed_numbers)
    await house.wait(1.4)
    page = await house.flow()
    confirmed_in_hold = len(patient.confirmed_numbers) + len(hasty.confirmed_numbers)
    pool = next(each for each in page["limits"] if each["name"] == "in-flight pool")
    refused_in_hold = len(hasty.refusals)
    house.say(f"the broker says: {page['diagnosis']['sentence']}")
    is_answering = await house.until(
        lambda: len(patient.confirmed_numbers) > confirmed_at_hold, HOLD_MS / 1000
    )
    house.say("the disk answers again")
    is_released = is_answering and await house.until(
        lambda: len(patient.confirmed_numbers) > confirmed_at_hold + PER_SECOND, 5
    )
    patient.stop()
    hasty.stop()
    is_settled = await house.until(lambda: not patient.outstanding and not hasty.outstanding, 5)
    stored = len(patient.confirmed_numbers) + len(hasty.confirmed_numbers)
    is_drained = await house.until(lambda: len(consumer.bodies) >= stored, 5)

    house.check(
        "no confirm left while the disk was silent",
        confirmed_in_hold == confirmed_at_hold,
        f"{confirmed_at_hold:,} before, {confirmed_in_hold:,} after 1.4 s of silence",
    )
    house.check(
        "the broker blamed the log",
        page["diagnosis"]["kind"] == "log",
        page["diagnosis"]["sentence"],
    )
    house.check(
        "the patient publisher was held, not refused",
        "flow" in " ".join(patient.gates) and not patient.refusals,
        f"held for: {'; '.join(dict.fromkeys(patient.gates)) or 'nothing'}",
    )
    house.check(
        "the hasty publisher was refused as busy, at once",
        refused_in_hold > 0 and {each.kind for each in hasty.refusals} == {RefusalKind.BUSY},
        f"{len(hasty.refusals):,} refusals: {hasty.refusals[0].text if hasty.refusals else '-'}",
    )
    house.check(
        "memory stayed within the pool",
        pool["used"] <= pool["limit"],
        f"{pool['used']:,} of {pool['limit']:,} bytes",
    )
    house.check(
        "both went on when the disk did",
        is_released and is_settled,
        f"{stored:,} confirmed in the end",
    )
    house.check(
        "consumed = confirmed; nothing refused was stored",
        is_drained and len(consumer.bodies) == len(set(consumer.bodies)) == stored,
        f"{len(consumer.bodies):,} consumed, {stored:,} confirmed",
    )
