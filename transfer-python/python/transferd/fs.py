"""`transfer://`: files in the memory of the job, for what reads and writes by fsspec. Importing this module imports fsspec.

    pandas.DataFrame(...).to_parquet("transfer://run-7/part-0.parquet")

fsspec finds it by the entry point of this package.
"""

from __future__ import annotations

import errno
import json
import threading
import time
from typing import Any

from fsspec import AbstractFileSystem
from fsspec.spec import AbstractBufferedFile

from ._client import Client, connect
from ._errors import Error, Timeout
from ._plug import home, path_of, room, session, unique

__all__ = ["TransferFileSystem"]

# Each process that changes something has an entry of the index, which these count; and each change a number, of which the highest counts.
_MOUNTS, _CHANGES, _INDEX, _DATA = "fs/mounts", "fs/changes", "fs/index/", "fs/data/"
# The least arena of a session, so that small files share one.
_ARENA = 16 << 20
# How many seconds an entry of the index may take that another node has. One that is there takes no time.
_INDEX_SECONDS = 1.0
# How many seconds a process may take to publish its first one.
_GIVE_UP = 60.0


class TransferFileSystem(AbstractFileSystem):  # type: ignore[misc]
    """Files in the arenas of the processes that wrote them, by the sidecar of this process, or the one at `socket`.

    A file is published when it is closed, as one version, and never changes: writing it again makes another one, and readers keep what they have opened. It
    stays until it is removed, or its sidecar ends. A folder is there while a file is in it.
    """

    protocol = "transfer"
    root_marker = ""

    def __init__(self, socket: str | None = None, **options: Any) -> None:
        super().__init__(**options)
        self._home: Client = home(None, "fs") if socket is None else connect(socket, arena=0)
        self._change_lock = threading.RLock()
        self._arenas: list[Client] = []
        # What this process has changed: entries by their paths, and the key of the index that has them.
        self._own: dict[str, dict[str, Any]] = {}
        self._mount: str | None = None
        # Entries that others have had, and since when one is missing.
        self._seen: set[str] = set()
        self._missing: dict[str, float] = {}

    # The index

    def _entries(self) -> dict[str, dict[str, Any]]:
        """All files by their paths."""
        keys = [f"{_INDEX}{n}" for n in range(self._home.counter(_MOUNTS).add(0))]
        keys = [key for key in keys if key != self._mount and not self._has_ended(key)]
        tables = [self._own]
        for key, found in zip(keys, self._home.fetch_many(keys, timeout=_INDEX_SECONDS) if keys else ()):
            if not isinstance(found, Error):
                tables.append(json.loads(bytes(found)))
                self._seen.add(key)
            elif isinstance(found, Timeout) and found.code == "unknown_key":
                self._missing.setdefault(key, time.monotonic())
            else:
                raise found
        merged: dict[str, dict[str, Any]] = {}
        for table in tables:
            for path, entry in table.items():
                if path not in merged or merged[path]["change"] < entry["change"]:
                    merged[path] = entry
        return {path: entry for path, entry in merged.items() if not entry.get("gone")}

    def _has_ended(self, key: str) -> bool:
        """Whether an entry is missing since its sidecar has ended, and not because the process that has counted it has still to publish it."""
        return key in self._missing and (key in self._seen or time.monotonic() - self._missing[key] > _GIVE_UP)

    def _change(self, changes: dict[str, dict[str, Any]]) -> None:
        """Publishes changes, all or none of them, and gives the memory of files back that nothing names any more."""
        with self._change_lock:
            before = self._entries()
            number = self._home.counter(_CHANGES).add(1)
            if self._mount is None:
                self._mount = f"{_INDEX}{self._home.counter(_MOUNTS).add(1)}"
            own = {**self._own, **{path: {**entry, "change": number} for path, entry in changes.items()}}
            self._publish(self._mount, json.dumps(own).encode())
            self._own = own
            after = {entry.get("data") for entry in self._entries().values()}
            for path in changes.keys() & before.keys():
                if (data := before[path]["data"]) not in after:
                    self._drop(data)

    def _publish(self, key: str, value: bytes) -> None:
        need = room([len(value)])
        self._arenas = [one for one in self._arenas if not one.gone]
        client = next((one for one in self._arenas if one.arena_free_bytes >= need), None)
        if client is None:
            client = session(path_of(self._home), max(need, _ARENA))
            self._arenas.append(client)
        client.push(key, value, outlive=True, takeover=True)

    def _drop(self, data: str) -> None:
        """Ends the data of a file, which may be another process's."""
        self._publish(data, b"")
        for client in self._arenas:
            try:
                return client.delete(data)
            except Error:
                # Another session has published it.
                continue

    # What fsspec asks for

    @classmethod
    def _strip_protocol(cls, path: Any) -> Any:
        if isinstance(path, list):
            return [cls._strip_protocol(one) for one in path]
        return "/".join(part for part in str(path).removeprefix("transfer://").split("/") if part)

    def info(self, path: str, **options: Any) -> dict[str, Any]:
        path, entries = self._strip_protocol(path), self._entries()
        if path in entries:
            return _described(path, entries[path])
        if not path or any(other.startswith(path + "/") for other in entries):
            return {"name": path, "size": 0, "type": "directory"}
        raise FileNotFoundError(errno.ENOENT, "no such file", f"transfer://{path}")

    def ls(self, path: str, detail: bool = True, **options: Any) -> list[Any]:
        path, entries = self._strip_protocol(path), self._entries()
        if path in entries:
            found = {path: _described(path, entries[path])}
        else:
            prefix, found = f"{path}/" if path else "", {}
            for other, entry in entries.items():
                if other.startswith(prefix):
                    name, below, _ = other[len(prefix) :].partition("/")
                    child = prefix + name
                    found[child] = {"name": child, "size": 0, "type": "directory"} if below else _described(child, entry)
            if path and not found:
                raise FileNotFoundError(errno.ENOENT, "no such file or folder", f"transfer://{path}")
        return [found[name] for name in sorted(found)] if detail else sorted(found)

    def created(self, path: str) -> float:
        return float(self.info(path)["created"])

    modified = created

    def mkdir(self, path: str, create_parents: bool = True, **options: Any) -> None:
        """Does nothing: a folder is there once a file is in it."""

    def makedirs(self, path: str, exist_ok: bool = False) -> None:
        """Does nothing: a folder is there once a file is in it."""

    def rmdir(self, path: str) -> None:
        """Does nothing, but refuses a folder that has files."""
        if self.exists(path):
            raise OSError(errno.ENOTEMPTY, "the folder has files", f"transfer://{self._strip_protocol(path)}")

    def _rm(self, path: str) -> None:
        path = self._strip_protocol(path)
        if self.info(path)["type"] == "file":
            self._change({path: {"gone": True}})

    rm_file = _rm

    def rm(self, path: Any, recursive: bool = False, maxdepth: int | None = None) -> None:
        paths = [path] if isinstance(path, str) else path
        files = [file for one in paths for file in self._files(one, recursive)]
        self._change({file: {"gone": True} for file in files})

    def mv(self, path1: str, path2: str, recursive: bool = True, maxdepth: int | None = None, **options: Any) -> None:
        """Renames a file, or all files of a folder, in one change. No byte moves."""
        self._name_anew(path1, path2, True)

    def cp_file(self, path1: str, path2: str, **options: Any) -> None:
        if self.isfile(path1):
            self._name_anew(path1, path2, False)

    def _name_anew(self, path1: str, path2: str, moves: bool) -> None:
        path1, path2, entries = self._strip_protocol(path1), self._strip_protocol(path2), self._entries()
        changes = {}
        for file in self._files(path1, True):
            changes[path2 + file[len(path1) :]] = entries[file]
            if moves:
                changes[file] = {"gone": True}
        if path1 != path2:
            self._change(changes)

    def _files(self, path: str, recursive: bool) -> list[str]:
        path, entries = self._strip_protocol(path), self._entries()
        if path in entries:
            return [path]
        below = [other for other in entries if not path or other.startswith(path + "/")]
        if not below:
            raise FileNotFoundError(errno.ENOENT, "no such file or folder", f"transfer://{path}")
        if not recursive:
            raise IsADirectoryError(errno.EISDIR, "a folder: say recursive=True", f"transfer://{path}")
        return below

    def _open(
        self,
        path: str,
        mode: str = "rb",
        block_size: Any = None,
        autocommit: bool = True,
        cache_options: Any = None,
        **options: Any,
    ) -> TransferFile:
        return TransferFile(self, path, mode, block_size or "default", autocommit, cache_options=cache_options, **options)

    def pipe_file(self, path: str, value: bytes, mode: str = "overwrite", **options: Any) -> None:
        path = self._strip_protocol(path)
        if mode == "create" and self.exists(path):
            raise FileExistsError(errno.EEXIST, "the file is there", f"transfer://{path}")
        data = f"{_DATA}{unique()}"
        with self._change_lock:
            self._publish(data, bytes(value))
            self._change({path: {"data": data, "size": len(value), "created": time.time()}})

    def cat_file(self, path: str, start: int | None = None, end: int | None = None, **options: Any) -> bytes:
        info = self.info(path)
        if info["type"] == "directory":
            raise IsADirectoryError(errno.EISDIR, "a folder", f"transfer://{info['name']}")
        begin, stop, _ = slice(start, end).indices(info["size"])
        return self._read(info, begin, stop)

    def _read(self, info: dict[str, Any], start: int, end: int) -> bytes:
        """A range of a file as it was when its `info` was asked for."""
        if start >= end:
            return b""
        if end - start == info["size"]:
            return bytes(self._home.fetch(info["data"]))
        return bytes(self._home.fetch(info["data"], slice=slice(start, end)))


def _described(path: str, entry: dict[str, Any]) -> dict[str, Any]:
    return {"name": path, "size": entry["size"], "type": "file", "created": entry["created"], "data": entry["data"]}


class TransferFile(AbstractBufferedFile):  # type: ignore[misc]
    """A file that is read in ranges, or published when it is closed."""

    def __init__(self, fs: TransferFileSystem, path: str, mode: str, *arguments: Any, **options: Any) -> None:
        path = fs._strip_protocol(path)
        if mode == "xb" and fs.exists(path):
            raise FileExistsError(errno.EEXIST, "the file is there", f"transfer://{path}")
        self._parts: list[bytes] = []
        super().__init__(fs, path, mode, *arguments, **options)
        if mode == "rb" and self.details["type"] == "directory":
            raise IsADirectoryError(errno.EISDIR, "a folder", f"transfer://{path}")
        if mode == "ab" and fs.exists(path):
            self._parts = [fs.cat_file(path)]
            self.loc = len(self._parts[0])

    def _fetch_range(self, start: int, end: int) -> bytes:
        found: bytes = self.fs._read(self.details, start, end)
        return found

    def _initiate_upload(self) -> None:
        """Nothing is sent before the end."""

    def _upload_chunk(self, final: bool = False) -> bool:
        self._parts.append(self.buffer.getvalue())
        if final and self.autocommit:
            self.commit()
        return True

    def commit(self) -> None:
        self.fs.pipe_file(self.path, b"".join(self._parts))
        self._parts = []

    def discard(self) -> None:
        self._parts = []
