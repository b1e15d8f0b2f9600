"""Signals that a process is sent: heard by all who listen, and by nobody else."""

import asyncio
import os
import signal

from manta_swarm.runtime.signals import collecting, hearing, told_to_stop


def send(number: signal.Signals) -> None:
    os.kill(os.getpid(), number)


async def test_all_who_listen_in_a_process_hear_of_each_signal_and_who_ends_takes_it_from_nobody() -> None:
    before = signal.getsignal(signal.SIGTERM)
    async with asyncio.timeout(10):
        with hearing(signal.SIGINT, signal.SIGTERM) as first:
            with hearing(signal.SIGINT) as second:
                send(signal.SIGINT)
                assert await first.next() is await second.next() is signal.SIGINT
            assert not first.is_set()
            send(signal.SIGTERM)
            send(signal.SIGINT)
            assert {await first.next(), await first.next()} == {signal.SIGINT, signal.SIGTERM}
            assert not second.is_set()
    assert signal.getsignal(signal.SIGTERM) is before


async def test_two_programs_in_one_loop_are_both_told_to_stop_once() -> None:
    async with asyncio.timeout(10), told_to_stop() as one, told_to_stop() as other:
        send(signal.SIGTERM)
        await asyncio.gather(one, other)
        send(signal.SIGINT)  # which does nothing more
        await asyncio.sleep(0)
    async with told_to_stop() as later:
        await asyncio.sleep(0)
        assert not later.done()


def test_a_program_without_a_loop_collects_them_and_a_second_one_means_hurry() -> None:
    before = signal.getsignal(signal.SIGINT)
    with collecting(signal.SIGINT, signal.SIGTERM) as told:
        assert told.numbers == []
        send(signal.SIGTERM)
        assert (told.numbers, told.is_set()) == ([signal.SIGTERM], False)
        send(signal.SIGINT)
        assert (told.numbers, told.is_set()) == ([signal.SIGTERM, signal.SIGINT], True)
    assert signal.getsignal(signal.SIGINT) is before
