"""Where files wait beside their place until they are published, and what becomes of them if their process dies.

A save keeps a folder of its own in the folder it saves to, hence on the same disk, and holds a lock on it that the
kernel gives up with the process, however that ends. The next save to that folder takes a folder nobody holds to its
end: see `settle`.
"""

from __future__ import annotations

import errno
import json
import mmap
import os
import re
import secrets
import shutil
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

try:
    import fcntl
except ImportError:  # Windows: no locks, so what a killed process leaves stays, and nobody waits for anybody
    fcntl = None  # type: ignore[assignment]

_OURS = re.compile(r"\.onnx-egraph-[0-9a-f]{16}")
_JOURNAL = "journal"
#: No protobuf is larger, so no larger file is a model.
_LARGEST = 1 << 31
#: What a model in a file begins with: the tag of a field of ModelProto, or a character of one of ONNX's text forms.
_BEGINNINGS = frozenset(b'\x08\x12\x1a"(2:Br\xa2\xca{<i \n')

#: What a lock on a folder ends with where there are none, or none for us.
_NO_LOCKS = frozenset({
    errno.EACCES, errno.EPERM, errno.EBADF, errno.EINVAL, errno.ENOLCK, errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP,
})  # fmt: skip

Stamp = list[int] | None


class FolderLock:
    """A lock on a folder among threads and processes. Nothing lies on the disk for it, and it ends with its process.

    Where the system or the file system has none, it is never held.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._descriptor = -1

    def take(self, wait: bool = True) -> bool:
        """Whether it is held now. Without `wait`, not if another holds it. Raises OSError where it fails otherwise."""
        if fcntl is None:
            return False
        try:
            if self._descriptor < 0:
                self._descriptor = os.open(self.folder, os.O_RDONLY)
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        except BlockingIOError:
            self.drop()
            return False
        except OSError as error:
            self.drop()
            if error.errno not in _NO_LOCKS:
                raise
            return False
        return True

    def drop(self) -> None:
        """Give it up, if it is held."""
        if self._descriptor >= 0:
            with suppress(OSError):
                fcntl.flock(self._descriptor, fcntl.LOCK_UN)  # for a forked child, which keeps the descriptor
            descriptor, self._descriptor = self._descriptor, -1
            os.close(descriptor)


class Stage:
    """A folder of our own in `place`. To be closed whatever happens, also when `open` did not come to its end."""

    def __init__(self, place: Path) -> None:
        self.place = place
        self.folder = place / f".onnx-egraph-{secrets.token_hex(8)}"
        self._door, self._life = FolderLock(place), FolderLock(self.folder)

    def open(self) -> None:
        """Make the folder, and end what dead processes have left in `place`. Raises OSError."""
        if self._door.take():
            _sweep(self.place)
        self.folder.mkdir(mode=0o700)
        self._life.take()  # behind the door, so that nobody finds the folder without its holder
        self._door.drop()

    def enter(self) -> None:
        """From here to `close`, nobody else publishes in `place`."""
        self._door.take()

    def note(self, model: Path, part: Path, texts: Mapping[Path, Path], files: Mapping[str, Path]) -> None:
        """Write down what is to be published, for `settle`: the model's `part`, texts by their part, and the
        `files` that the model of either side has no use for, each name with where the file lies now.
        """
        journal = {
            "name": model.name,
            "model": stamp(part),
            "texts": [[str(part), str(final)] for part, final in texts.items()],
            "files": {name: stamp(path) for name, path in files.items()},
        }
        (self.folder / _JOURNAL).write_text(json.dumps(journal), encoding="utf-8")

    def close(self) -> None:
        """Remove the folder and what no model uses. May be called again, after an interrupt."""
        if os.path.lexists(self.folder):
            with suppress(OSError):  # out of descriptors: what is ours can be removed all the same
                self._door.take()
            settle(self.folder)
        self._life.drop()
        self._door.drop()


def settle(folder: Path) -> None:
    """End a save by what its folder says, on whichever side of the model's rename it stopped; that rename counts.

    If the model in place is the new one, its texts follow. Weights that the save brought, and those that the model
    there before it used, are removed unless some model in their folder names them: after the rename the old ones,
    before it the new ones.
    """
    place, journal = folder.parent, _read(folder / _JOURNAL)
    committed = stamp(place / journal["name"]) == journal["model"]
    for part, final in journal["texts"] if committed else ():
        with suppress(OSError):
            if os.path.lexists(part):
                os.replace(part, final)
    for name, mark in journal["files"].items():
        with suppress(OSError):
            if stamp(place / name) == mark and not _mentioned(place, name):
                (place / name).unlink()
    shutil.rmtree(folder, ignore_errors=True)


def stamp(path: Path) -> Stamp:
    """Equal as long as nobody wrote or replaced the file, wherever it is renamed to; None if there is none."""
    try:
        found = path.lstat()
    except OSError:
        return None
    return [found.st_ino, found.st_size, found.st_mtime_ns]


def _read(journal: Path) -> Any:
    """What it says; nothing to do if it was not completed, for then nothing was published."""
    nothing: dict[str, Any] = {"name": ".", "model": None, "texts": [], "files": {}}
    try:
        found = json.loads(journal.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return nothing
    return found if isinstance(found, dict) and found.keys() == nothing.keys() else nothing


def _sweep(place: Path) -> None:
    """Settle the folders of ours that no process holds. What looks like one and is another user's is left alone."""
    with suppress(OSError), os.scandir(place) as entries:
        for entry in entries:
            if not _OURS.fullmatch(entry.name) or not entry.is_dir(follow_symlinks=False):
                continue
            if entry.stat(follow_symlinks=False).st_uid != os.geteuid():
                continue
            life = FolderLock(Path(entry.path))
            try:
                if life.take(wait=False):
                    settle(Path(entry.path))
            finally:
                life.drop()


def _mentioned(place: Path, name: str) -> bool:
    """Whether a model in the folder may use the file; yes where one cannot be read."""
    with os.scandir(place) as entries:
        return any(e.name != name and e.is_file() and _names(Path(e.path), os.fsencode(name)) for e in entries)


def _names(model: Path, name: bytes) -> bool:
    """Whether a file that begins as a model does holds the name as a string of its own, or behind a folder's."""
    try:
        with model.open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            if not 0 < size < _LARGEST or file.read(1)[0] not in _BEGINNINGS:
                return False
            with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
                length = bytes([len(name)] if len(name) < 128 else [len(name) % 128 + 128, len(name) // 128])
                at = data.find(name)
                while at >= 0:
                    if data[max(at - len(length), 0) : at] == length or data[max(at - 1, 0) : at] in (b"/", b'"', b"'"):
                        return True
                    at = data.find(name, at + 1)
                return False
    except OSError:
        return True
