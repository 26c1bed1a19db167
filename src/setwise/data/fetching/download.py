"""Download one file over HTTP, going on where a broken connection left off."""

from __future__ import annotations

import http.client
import json
import os
import re
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

from setwise.data.api import DataError
from setwise.data.progress import progress_bar

CHUNK = 2**18
TIMEOUT = 30.0  # seconds without a byte
ATTEMPTS = 5  # in a row that bring nothing new
MOST_ATTEMPTS = 200
WAIT = 1.0  # seconds before the second attempt; doubled for each further one
WORTH_WAITING = {408, 425, 429, 500, 502, 503, 504}


class _Broken(Exception):
    """The connection failed in a way that another attempt may mend."""


def download(url: str, dest: Path, *, most_bytes: int) -> None:
    """Download ``url`` to ``dest``, which appears only when complete.

    What has come so far is kept beside it as ``.part``, also when the process ends, and the next call goes on from
    there: it asks for the rest only if the file is still the same (If-Range with the server's ETag or date), and
    starts again if the server sends the whole. The caller compares checksums.
    """
    part, notes = dest.with_name(dest.name + ".part"), dest.with_name(dest.name + ".part.json")
    dest.parent.mkdir(parents=True, exist_ok=True)
    best = failures = 0
    with progress_bar() as bar:
        task = bar.add_task(f"downloading {dest.name}", total=None)

        def show(done: int, total: int | None) -> None:
            bar.update(task, total=total, completed=done)

        for attempt in range(1, MOST_ATTEMPTS + 1):
            try:
                _attempt(url, part, notes, most_bytes, show)
                break
            except _Broken as error:
                size = _size(part)
                failures = 1 if size > best else failures + 1
                best = max(best, size)
                if failures >= ATTEMPTS or attempt == MOST_ATTEMPTS:
                    raise DataError(
                        f"expected to download {url}, got {error}; {size:,} bytes are kept: run the same again to go "
                        "on, or download it by other means and give its path as the source"
                    ) from error
            time.sleep(WAIT * 2 ** (failures - 1))
    os.replace(part, dest)
    notes.unlink(missing_ok=True)


def _opener() -> urllib.request.OpenerDirector:
    """HTTP and HTTPS, proxies and redirects; not the file and FTP that a redirect could lead to."""
    opener = urllib.request.OpenerDirector()
    for handler in (
        urllib.request.ProxyHandler,
        urllib.request.UnknownHandler,
        urllib.request.HTTPHandler,
        urllib.request.HTTPSHandler,
        urllib.request.HTTPDefaultErrorHandler,
        urllib.request.HTTPRedirectHandler,
        urllib.request.HTTPErrorProcessor,
    ):
        opener.add_handler(handler())
    return opener


def _attempt(url: str, part: Path, notes: Path, most_bytes: int, show: Callable[[int, int | None], None]) -> None:
    """One connection: add what comes to ``part``; raise _Broken where another attempt may bring the rest."""
    known = _read_notes(notes, url)
    have = _size(part) if known else 0
    headers = {"User-Agent": "setwise", "Accept-Encoding": "identity"}
    if have:
        headers["Range"] = f"bytes={have}-"
        if known["validator"]:
            headers["If-Range"] = known["validator"]
    try:
        response = _opener().open(urllib.request.Request(url, headers=headers), timeout=TIMEOUT)
    except urllib.error.HTTPError as error:
        error.close()
        if error.code == 416 and have:
            if known["total"] == have:
                return
            part.unlink()
            raise _Broken("a file that is shorter than before") from error
        if error.code in WORTH_WAITING:
            raise _Broken(f"HTTP {error.code} {error.reason}") from error
        raise DataError(
            f"expected a file at {url}, got HTTP {error.code} {error.reason}; give another source: a URL or a path"
        ) from error
    except (OSError, http.client.HTTPException) as error:
        raise _Broken(f"{type(error).__name__}: {error}") from error
    except ValueError as error:
        raise DataError(f"expected a URL, got {url!r}: {error}") from error
    with response:
        total = int(length) if (length := response.headers.get("Content-Length", "")).isdecimal() else None
        if response.status == 206:
            whole = re.fullmatch(r"bytes (\d+)-\d+/(\d+|\*)", response.headers.get("Content-Range", ""))
            if whole is None or int(whole[1]) != have:
                part.unlink(missing_ok=True)
                raise _Broken("another part of the file than asked for")
            total = int(whole[2]) if whole[2] != "*" else have + total if total is not None else None
        else:
            have = 0  # the server sends the whole: it cannot do parts, or the file has changed
        if total is not None and total > most_bytes:
            raise DataError(f"expected at most {most_bytes:,} bytes at {url}, got {total:,}; this is another file")
        tag = response.headers.get("ETag")
        strong = tag and not tag.startswith("W/")  # If-Range takes a strong one, or the date
        validator = tag if strong else response.headers.get("Last-Modified")
        notes.write_text(json.dumps({"url": url, "validator": validator, "total": total}))
        with part.open("ab" if have else "wb") as out:
            while True:
                show(have, total)
                try:
                    chunk = response.read1(CHUNK)  # what is there: read() would lose it when the rest does not come
                except (OSError, http.client.HTTPException) as error:
                    raise _Broken(f"{type(error).__name__} after {have:,} bytes") from error
                if not chunk:
                    break
                have += len(chunk)
                if have > most_bytes:
                    raise DataError(f"expected at most {most_bytes:,} bytes at {url}, got more; this is another file")
                out.write(chunk)
    if total is not None and have != total:
        raise _Broken(f"a connection that ended at {have:,} of {total:,} bytes")


def _read_notes(notes: Path, url: str) -> dict[str, Any]:
    try:
        known = json.loads(notes.read_text())
    except (OSError, ValueError):
        return {}
    usable = isinstance(known, dict) and known.get("url") == url and {"validator", "total"} <= known.keys()
    return known if usable else {}


def _size(path: Path) -> int:
    return path.stat().st_size if path.is_file() else 0
