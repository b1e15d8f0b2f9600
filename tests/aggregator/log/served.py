"""A web server on loopback that shows a log's files, counts what is asked for, and lies, hangs or fails where a test says so."""

import http.server
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path


@dataclass
class Served:
    """What is shown, and what was asked for."""

    files: dict[str, bytes]
    asked: Counter[str] = field(default_factory=Counter)
    busy: Counter[str] = field(default_factory=Counter)  # how many times a file is answered by 503 yet
    moved: dict[str, str] = field(default_factory=dict)  # name -> where it points to
    endless: set[str] = field(default_factory=set)  # its bytes never end
    hanging: set[str] = field(default_factory=set)  # not answered before ``go``
    hangs: threading.Event = field(default_factory=threading.Event)  # somebody waits for one of these
    go: threading.Event = field(default_factory=threading.Event)
    url: str = ""

    def show(self, folder: Path) -> None:
        """Show the files of a folder from now on, and no others."""
        self.files = {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@contextmanager
def served(folder: Path) -> Iterator[Served]:
    """Serve what a folder has at this moment, below /tlog/."""
    shown = Served({})
    shown.show(folder)

    class Handler(http.server.BaseHTTPRequestHandler):
        def log_message(self, format: str, *args: object) -> None:
            del format, args

        def do_GET(self) -> None:
            name = self.path.removeprefix("/tlog/")
            shown.asked[name] += 1
            if name in shown.hanging:
                shown.hangs.set()
                shown.go.wait(60)
            if name in shown.moved:
                self.send_response(302)
                self.send_header("Location", shown.moved[name])
                self.end_headers()
            elif shown.busy[name]:
                shown.busy[name] -= 1
                self.send_error(503)
            elif name not in shown.files:
                self.send_error(404)
            else:
                self.send_response(200)
                self.end_headers()
                self._send(shown.files[name], is_endless=name in shown.endless)

        def _send(self, data: bytes, *, is_endless: bool) -> None:
            try:
                self.wfile.write(data)
                while is_endless:
                    self.wfile.write(bytes(65_536))
            except OSError:  # whoever asked has gone
                pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        shown.url = f"http://127.0.0.1:{server.server_port}/tlog/"
        thread = threading.Thread(target=server.serve_forever, args=(0.02,))
        thread.start()
        try:
            yield shown
        finally:
            shown.go.set()
            server.shutdown()
            thread.join()
