"""Downloads that resume where they were interrupted and are checked by their sha256."""

from __future__ import annotations

import os
import shutil
import tarfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from data_prep.base import DataError, locked, progress_bar
from ntl.files import file_sha256

TRIES = 8  # transfers that may break before giving up
UNANSWERED = 3  # of them, if no server has answered at all
PAUSE = 1.0  # seconds before the second transfer, doubled each time up to 30


class ResumingDownloader:
    """A downloader for pooch that continues a partial file with an HTTP range request.

    The partial file stays beside the target when a transfer breaks, with the server's tag for this version of the
    file: a server that has another version by then sends it whole.
    """

    def __init__(self, partial: Path, progress: bool = True) -> None:
        self.partial, self.progress = partial, progress
        self.answered = False

    def __call__(self, url: str, output_file: str, pooch: Any) -> None:
        import requests

        for failures in range(TRIES):
            try:
                self.transfer(url)
                break
            except requests.RequestException as error:
                status = getattr(error.response, "status_code", None)
                last = min(TRIES, TRIES if self.answered else UNANSWERED) - 1
                if failures >= last or (status is not None and status < 500):
                    size = self.partial.stat().st_size if self.partial.exists() else 0
                    raise DataError(
                        f"cannot download {url}: {error}. {size:,} bytes are kept, and the next attempt continues from "
                        "there. Check the connection and the address, or use another source."
                    ) from error
                time.sleep(PAUSE * min(2**failures, 30))
        os.replace(self.partial, output_file)
        self.tag.unlink(missing_ok=True)

    @property
    def tag(self) -> Path:
        return self.partial.with_name(self.partial.name + ".etag")

    def transfer(self, url: str) -> None:
        """Bring what the partial file lacks, once."""
        import requests

        have = self.partial.stat().st_size if self.partial.exists() and self.tag.exists() else 0
        ask = {"Range": f"bytes={have}-", "If-Range": self.tag.read_text()} if have else {}
        with requests.get(url, headers=ask | {"Accept-Encoding": "identity"}, stream=True, timeout=60) as response:
            self.answered = True
            if response.status_code == 416:  # nothing after what is here
                if response.headers.get("Content-Range") == f"bytes */{have}":
                    return None  # it is all
                self.tag.unlink()
                return self.transfer(url)
            response.raise_for_status()
            have = have if response.status_code == 206 else 0
            # Without a tag that identifies the version, a later attempt has to begin again.
            tag = response.headers.get("ETag") or response.headers.get("Last-Modified")
            if tag and not tag.startswith("W/"):
                self.tag.write_text(tag)
            else:
                self.tag.unlink(missing_ok=True)
            length = int(response.headers.get("Content-Length", 0))
            with (
                open(self.partial, "ab" if have else "wb") as file,
                progress_bar(f"Downloading {Path(url).name}", have + length, self.progress, "bytes") as advance,
            ):
                advance(have)
                for chunk in response.iter_content(1 << 16):
                    file.write(chunk)
                    advance(len(chunk))
        return None


def fetch(url: str, folder: Path, sha256: str | None, progress: bool = True) -> tuple[Path, str]:
    """Return the file of `url` in `folder`, downloaded unless it is there, and its sha256.

    With `sha256` the file must have that hash. With None whatever comes is trusted, and the caller records its hash.
    Raises DataError if the transfer breaks for good or the hash is another.
    """
    import pooch

    name = Path(url).name
    if name in ("", ".."):
        raise DataError(f"url: got {url!r}, expected the address of a file")
    pooch.get_logger().setLevel("WARNING")
    folder.mkdir(parents=True, exist_ok=True)
    with locked(folder / f".{name}.lock", f"another process to download {name}"):
        known = f"sha256:{sha256}" if sha256 else None
        downloader = ResumingDownloader(folder / f"{name}.part", progress)
        try:
            path = Path(pooch.retrieve(url, known, fname=name, path=folder, downloader=downloader))
        except ValueError as error:
            if isinstance(error, DataError):
                raise
            raise DataError(
                f"{url}: the hash does not match ({error}). Expected sha256 {sha256}. If the file was replaced "
                "for a good reason, give its hash as sha256=…; otherwise use another source."
            ) from error
        return path, file_sha256(path)


def extract(archive: Path, names: Sequence[str], folder: Path) -> Path:
    """Write the members of a tar archive whose paths end in `names` to `folder` unless they are there; return it."""
    with locked(archive.with_name(f".{archive.name}.extract.lock"), f"another process to unpack {archive.name}"):
        wanted = {name for name in names if not (folder / name).exists()}
        if wanted:
            try:
                with tarfile.open(archive, "r|*") as tar:
                    for member in tar:
                        name = "/".join(Path(member.name).parts[-2:])  # one of `names`, never a path of the archive's
                        if name not in wanted or not member.isfile():
                            continue
                        (folder / name).parent.mkdir(parents=True, exist_ok=True)
                        partial = folder / f"{name}.part"
                        with open(partial, "wb") as file:
                            shutil.copyfileobj(tar.extractfile(member), file)
                        os.replace(partial, folder / name)
                        wanted.discard(name)
                        if not wanted:
                            break
            except tarfile.TarError as error:
                raise DataError(
                    f"{archive}: no readable tar archive ({error}). Remove it to download it again."
                ) from error
        if wanted:
            raise DataError(f"{archive}: holds no {', '.join(sorted(wanted))}; expected the published v1.0 layout.")
    return folder
