"""The clock never falls, never stands, and knows when it was set."""

from datetime import UTC, datetime, timedelta

from forenotice.clock import SystemClock

START = datetime(2026, 1, 5, 12, 0, tzinfo=UTC)


class Machine:
    """The two clocks of a machine, as a test moves them."""

    def __init__(self) -> None:
        self.wall = START
        self.monotonic = 1000.0

    def clock(self) -> SystemClock:
        return SystemClock(wall=lambda: self.wall, monotonic=lambda: self.monotonic)

    def live(self, **duration: float) -> None:
        passed = timedelta(**duration)
        self.wall += passed
        self.monotonic += passed.total_seconds()

    def set(self, **by: float) -> None:
        self.wall += timedelta(**by)


def test_time_is_aware_and_never_falls() -> None:
    clock = SystemClock()
    first = clock.now()
    assert first.tzinfo is UTC
    assert abs(first - datetime.now(UTC)) < timedelta(minutes=1)
    ahead = first + timedelta(hours=1)
    clock.not_below(ahead)
    clock.not_below(first)
    assert clock.now() >= ahead


def test_it_follows_the_system_s() -> None:
    machine = Machine()
    clock = machine.clock()
    for _ in range(10):
        machine.live(seconds=10)
        machine.set(milliseconds=50)
        assert clock.now() == machine.wall
    assert (clock.jumped, clock.behind) == (timedelta(0), timedelta(0))


def test_small_steps_that_add_up_are_a_jump_too() -> None:
    machine = Machine()
    clock = machine.clock()
    for _ in range(30):
        machine.live(seconds=10)
        machine.set(milliseconds=100)
        clock.now()
    assert timedelta(seconds=2) < clock.jumped <= timedelta(seconds=3)


def test_a_jump_ahead_is_followed_and_counted() -> None:
    machine = Machine()
    clock = machine.clock()
    machine.live(seconds=10)
    machine.set(hours=1)
    assert clock.now() == machine.wall
    assert clock.jumped == timedelta(hours=1)
    machine.live(minutes=5)
    machine.set(hours=2)
    clock.now()
    assert clock.jumped == timedelta(hours=3)


def test_behind_the_journal_time_goes_on_until_the_system_s_has_caught_up() -> None:
    machine = Machine()
    clock = machine.clock()
    clock.not_below(START + timedelta(minutes=2))
    machine.live(seconds=30)
    assert clock.now() == START + timedelta(minutes=2, seconds=30)
    assert clock.behind == timedelta(minutes=2)
    machine.set(minutes=2)
    assert (clock.now(), clock.behind, clock.jumped) == (machine.wall, timedelta(0), timedelta(0))


def test_ahead_and_back_again() -> None:
    machine = Machine()
    clock = machine.clock()
    machine.set(days=1)
    clock.now()
    machine.set(days=-1)
    machine.live(minutes=1)
    assert clock.now() == START + timedelta(days=1, minutes=1)
    assert clock.behind == timedelta(days=1)
    assert clock.jumped == timedelta(days=1)
    assert clock.outside() == machine.wall


def test_a_shared_clock_counts_in_place_of_the_system_s() -> None:
    machine = Machine()
    clock = machine.clock()
    shared = START - timedelta(minutes=5)
    clock.correct(shared)
    assert clock.now() == shared
    machine.set(hours=3)
    machine.live(seconds=20)
    assert (clock.now(), clock.jumped) == (shared + timedelta(seconds=20), timedelta(0))
    clock.correct(shared + timedelta(hours=1, seconds=20))
    assert clock.now() == shared + timedelta(hours=1, seconds=20)
    assert clock.jumped == timedelta(hours=1)


def test_a_later_process_of_the_same_boot_goes_on_from_the_mark() -> None:
    machine = Machine()
    mark = machine.clock().mark()
    machine.live(seconds=10)
    machine.set(hours=1)
    later = machine.clock()
    later.go_on_from(mark)
    assert later.now() == machine.wall
    assert later.jumped == timedelta(hours=1)

    machine.monotonic = 5
    rebooted = machine.clock()
    rebooted.go_on_from(mark)
    rebooted.go_on_from("another-boot 1.0 " + START.isoformat())
    assert (rebooted.now(), rebooted.jumped) == (machine.wall, timedelta(0))
