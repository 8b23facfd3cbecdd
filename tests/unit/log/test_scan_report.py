from penstock.log.scan_report import DAMAGES_KEPT_MAX, Damage, ScanReport

DAMAGE = Damage("log/x.seg", 16, 1016, 104, "record")


def test_a_clean_report_says_nothing():
    assert ScanReport().sentences() == []
    assert not ScanReport().is_damaged


def test_damages_are_described_up_to_a_limit_and_counted_beyond():
    report = ScanReport()
    for _ in range(DAMAGES_KEPT_MAX + 5):
        report.add_damage(DAMAGE)
    lines = report.sentences()
    assert lines[0] == "log/x.seg byte 16: damaged record (104 bytes)"
    assert lines[-1] == "and 5 more damaged stretches"
    assert len(lines) == DAMAGES_KEPT_MAX + 1
    assert report.is_damaged


def test_gaps_torn_frames_and_tails_are_told_and_are_no_damage():
    report = ScanReport(torn_tail=DAMAGE, dropped=[DAMAGE], kept_as=["cut/1"])
    report.add_gap(5, 9)
    lines = report.sentences()
    assert lines[0] == "no segment holds positions 5 to 9"
    assert "104 bytes of unfinished writes, dropped" in lines[1]
    assert lines[2].endswith("unfinished write of 104 bytes, cut and kept in cut/1")
    assert not report.is_damaged


def test_missing_synced_bytes_and_broken_chains_are_damage():
    assert ScanReport(missing_tail=(10, 30)).is_damaged
    assert "20 bytes are missing" in ScanReport(missing_tail=(10, 30)).sentences()[0]
    assert ScanReport(chain_breaks=2).is_damaged
