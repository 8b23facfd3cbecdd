"""Loop lag: nothing when timers are kept, the delay when they are not."""

from penstock.server.loop_lag import WINDOW_SAMPLES, LoopLag


def test_a_loop_that_is_on_time_has_no_lag(loop):
    lag = LoopLag(loop)
    lag.start()
    loop.advance(250)
    loop.advance(250)
    assert lag.histogram.count == 2
    assert lag.worst_seconds < 1e-6


def test_a_late_timer_is_the_lag(loop):
    lag = LoopLag(loop)
    lag.start()
    loop.advance(400)
    assert abs(lag.worst_seconds - 0.150) < 1e-6


def test_the_worst_lag_is_forgotten_after_its_window(loop):
    lag = LoopLag(loop)
    lag.start()
    loop.advance(400)
    for _ in range(WINDOW_SAMPLES):
        loop.advance(250)
    assert lag.worst_seconds < 1e-6


def test_stopped_it_measures_no_more(loop):
    lag = LoopLag(loop)
    lag.start()
    lag.stop()
    loop.advance(5000)
    assert lag.histogram.count == 0
