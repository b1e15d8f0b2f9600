"""The monitor's process: ``python -m manta_swarm.aggregator.monitor.program DIR SETTINGS WHERE``, started by an aggregator.

Who starts it is ``aggregator.monitor.observers``. SETTINGS is the run file's [monitor] as JSON, WHERE the descriptor of the
socket that the aggregator listens with, and whether it is on loopback.
"""

import asyncio
import json
import logging
import socket
import sys
from pathlib import Path

import uvicorn

from manta_swarm.aggregator.monitor.answers import Answers
from manta_swarm.aggregator.monitor.app import MonitorApp, load_files
from manta_swarm.aggregator.monitor.present import Present
from manta_swarm.aggregator.monitor.settings import MonitorSection
from manta_swarm.aggregator.monitor.shown import Json, shown_head, shown_quality, shown_round
from manta_swarm.aggregator.monitor.sight import Sight, SightUpdate
from manta_swarm.aggregator.monitor.streams import EventStreams
from manta_swarm.aggregator.status import unix_ms
from manta_swarm.network.http_server import Places, allow_files, config_of
from manta_swarm.runtime.line import BEAT_S, BEATS, Heartbeat, Parent, be_child

_LOOK_S = 0.25
_NOW_S, _NOW_AT_LEAST_S = 1.0, 5.0
_BESIDE_STREAMS = 128  # connections that are answered beside all event streams
_FILES_BESIDE = 512  # descriptors beside connections

logger = logging.getLogger("manta.monitor")


class Monitor:
    """The monitor at work: it follows the run's log and serves the page."""

    def __init__(self, sight: Sight, settings: MonitorSection, *, is_loopback: bool) -> None:
        """Show what ``sight`` sees."""
        self._sight = sight
        self._present = Present(sight)
        self._streams = EventStreams(settings.streams, self._greeting)
        answers = Answers(sight, self._present, settings)
        names = settings.host_names if is_loopback else None
        self.app = MonitorApp(sight, self._present, answers, self._streams, load_files(), names)
        self._told_s = 0.0

    async def watch(self) -> None:
        """Look again and again, and tell everybody what is new, until this is cancelled."""
        loop = asyncio.get_running_loop()
        is_pending, has_looked_back = False, False
        while True:
            update = await self._sight.look()
            if not has_looked_back and self._sight.newest_head is not None:
                await self._sight.look_back()
                has_looked_back = True
            self.app.next_moment()  # also if nothing is new: ages grow
            is_pending = is_pending or update.is_any
            if update.live:
                self._present.note_traffic()
            self._tell(update)
            since_s = loop.time() - self._told_s
            if since_s >= (_NOW_S if is_pending else _NOW_AT_LEAST_S):
                self._told_s, is_pending = loop.time(), False
                if len(self._streams):
                    self._streams.publish("now", self._present.now(unix_ms()))
            await asyncio.sleep(_LOOK_S)

    def close(self) -> None:
        """End what goes on for ever."""
        self._streams.close()

    def _tell(self, update: SightUpdate) -> None:
        sight = self._sight
        if not len(self._streams):
            return
        if update.rounds:
            self._streams.publish("round", shown_round(sight.view.rounds.row(sight.view.round)))
        if update.head and sight.newest_head is not None:
            self._streams.publish("head", shown_head(sight.newest_head))
        if update.quality and sight.evaluations.newest is not None:
            self._streams.publish("quality", shown_quality(sight.evaluations.newest))
        if update.front and sight.members_front.newest is not None:
            self._streams.publish("front", {"round": sight.members_front.newest.round})
        if (update.rounds or update.settled) and sight.manifest.is_audited:
            self._streams.publish("trust", {"round": sight.view.round, "is_settled": sight.view.is_settled})
        if update.pictures:
            self._streams.publish("pictures", {"round": sight.pictures.index.round})

    def _greeting(self) -> list[tuple[str, Json]]:
        newest = self._sight.newest_head
        head = [("head", shown_head(newest))] if newest is not None else []
        return [("now", self._present.now(unix_ms())), *head]


async def serve(monitor: Monitor, listening: socket.socket, streams: int, parent: Parent) -> None:
    """Answer until SIGTERM."""
    places = Places(streams + _BESIDE_STREAMS, streams + _BESIDE_STREAMS)
    server = uvicorn.Server(config_of(monitor.app, places, log_level=None))
    work = [asyncio.create_task(monitor.watch()), asyncio.create_task(_beat(server, monitor, parent))]
    serving = asyncio.create_task(server.serve([listening]))
    done, _ = await asyncio.wait([serving, *work], return_when=asyncio.FIRST_COMPLETED)
    server.should_exit = True
    monitor.close()
    await serving
    places.close()
    for task in work:
        task.cancel()
    await asyncio.wait(work)
    for task in done:
        task.result()


async def _beat(server: uvicorn.Server, monitor: Monitor, parent: Parent) -> None:
    """Give signs of life for as long as the event loop goes round; see that everything ends when it should."""
    while not server.should_exit:
        parent.say(Heartbeat())
        await asyncio.sleep(BEAT_S / 2)
    monitor.close()
    server.should_exit = True


def work(parent: Parent) -> None:
    """Follow the log and serve the page until the parent ends."""
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(name)s %(message)s")
    directory, settings_text, where_text = Path(sys.argv[1]), sys.argv[2], json.loads(sys.argv[3])
    settings = MonitorSection.model_validate_json(settings_text)
    allow_files(settings.streams + _BESIDE_STREAMS + _FILES_BESIDE)
    parent.say(Heartbeat())
    monitor = Monitor(Sight(directory), settings, is_loopback=where_text["is_loopback"])
    with socket.socket(fileno=where_text["fd"]) as listening:
        asyncio.run(serve(monitor, listening, settings.streams, parent))


if __name__ == "__main__":
    be_child(BEATS, work)
