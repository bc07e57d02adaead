"""What the tools do with files: read, write, edit, replace, delete, list, search; all bounded.

Text is read and written in an encoding that takes every byte back as it was; a file that is not in
it is refused with the byte that does not fit, or goes through base64. Line ends stay as they are.
"""

import base64
import binascii
import os
import stat
from collections.abc import Callable, Iterator
from fnmatch import fnmatchcase
from typing import Literal, TypeAlias

from celeriac.codec import JsonValue
from celeriac.errors import ToolError
from celeriac.workspace.changing import File, Plan, changeable, read_file
from celeriac.workspace.confinement import (
    MAX_DEPTH,
    TEMPORARY_PREFIX,
    described,
    is_of_git,
    kind_of,
    opened_folder,
    parts_of,
)
from celeriac.workspace.digests import SKIPPED_FOLDERS
from celeriac.workspace.secret_files import is_secret

MAX_RETURNED_CHARACTERS = 100_000  # of one read: more would fill the model's context
MAX_ENTRIES = 1000  # of one list
MAX_ENTRIES_LOOKED_AT = 20_000  # of one list or search, so that a huge folder ends it
MAX_MATCHES = 200  # of one search
MAX_MATCH_CHARACTERS = 300
MAX_SEARCHED_BYTES = 50_000_000

Encoding = Literal["utf-8", "utf-16", "latin-1", "cp1252", "base64"]
Told: TypeAlias = dict[str, JsonValue]


def read(root: int, path: str, encoding: Encoding, first_line: int, lines: int | None) -> Told:
    parts = changeable(path)
    file = _existing(root, parts)
    told: Told = {"path": path, "bytes": len(file.content), "state": file.state.to_json()}
    if encoding == "base64":
        limit = MAX_RETURNED_CHARACTERS // 4 * 3
        told |= {"encoding": "base64", "is_truncated": len(file.content) > limit}
        return told | {"content": base64.b64encode(file.content[:limit]).decode()}
    text = decoded(file.content, encoding, path)
    all_lines = text.splitlines(keepends=True) if "\r" not in text else _lines_kept(text)
    begin = max(first_line, 1) - 1
    end = len(all_lines) if lines is None else begin + max(lines, 1)
    chosen = "".join(all_lines[begin:end])
    shown = chosen[:MAX_RETURNED_CHARACTERS]
    told |= {"content": shown, "encoding": encoding, "lines": len(all_lines)}
    told |= {"first_line": begin + 1, "is_truncated": len(shown) < len(chosen)}
    if len(shown) < len(chosen):
        told["note"] = (
            f"only the first {len(shown)} of {len(chosen)} characters are shown; "
            "read on with first_line and lines"
        )
    return told


def written(content: str, encoding: Encoding, path: str) -> Callable[[File | None], Plan]:
    """The whole new content of a file, or of a new one."""

    def plan(before: File | None) -> Plan:
        if encoding == "base64":
            try:
                data = base64.b64decode(content, validate=True)
            except (binascii.Error, ValueError) as error:
                raise ToolError(f"the content is no base64: {error}") from error
        else:
            text = content
            if before is not None and _is_crlf(before.content) and "\r" not in text:
                text = text.replace("\n", "\r\n")
            data = encoded(text, encoding, path)
        return Plan(data, {"bytes": len(data), "is_new": before is None})

    return plan


def edited(
    old: str, new: str, encoding: Encoding, path: str, *, every: bool
) -> Callable[[File | None], Plan]:
    """A text of the file replaced by another one: at the only place, or at every place."""

    def plan(before: File | None) -> Plan:
        if before is None:
            raise ToolError(f"there is no {path!r} in the workspace")
        if not old:
            raise ToolError("the text to look for is empty")
        text = decoded(before.content, encoding, path)
        wanted, replacement = old, new
        if wanted not in text and _is_crlf(before.content) and "\r" not in wanted + new:
            wanted, replacement = wanted.replace("\n", "\r\n"), new.replace("\n", "\r\n")
        count = text.count(wanted)
        if count == 0:
            raise ToolError(
                f"the text to look for is not in {path!r}; nothing was changed. Read the file, and "
                "give the text exactly as it stands there, spaces and line ends too"
            )
        if count > 1 and not every:
            raise ToolError(
                f"the text to look for stands {count} times in {path!r}; nothing was changed. Give "
                "more of what is around it, so that it stands once"
            )
        data = encoded(text.replace(wanted, replacement), encoding, path)
        return Plan(data, {"bytes": len(data), "replaced": count})

    return plan


def deleted(path: str) -> Callable[[File | None], Plan]:
    def plan(before: File | None) -> Plan:
        if before is None:
            raise ToolError(f"there is no {path!r} in the workspace")
        return Plan(None, {"is_deleted": True})

    return plan


def listed(root: int, path: str, pattern: str, *, deep: bool) -> Told:
    """The entries of a folder: with `deep`, of those inside it too."""
    entries: list[JsonValue] = []
    is_truncated = False
    for looked_at, (parts, found) in enumerate(_walk(root, parts_of(path), deep=deep), 1):
        if len(entries) == MAX_ENTRIES or looked_at > MAX_ENTRIES_LOOKED_AT:
            is_truncated = True
            break
        if fnmatchcase(parts[-1], pattern):
            entries.append(_entry(parts, found))
    told: Told = {"path": path, "entries": entries, "is_truncated": is_truncated}
    if is_truncated:
        told["note"] = f"only {len(entries)} entries are shown; list a folder of it, or a pattern"
    return told


def searched(root: int, path: str, text: str, pattern: str) -> Told:
    """The lines that hold a text, in all files that are UTF-8."""
    if not text or "\n" in text:
        raise ToolError("give some text of one line to look for")
    matches: list[JsonValue] = []
    read_bytes = 0
    is_truncated = False
    for looked_at, (parts, found) in enumerate(_walk(root, parts_of(path), deep=True), 1):
        if not stat.S_ISREG(found.st_mode) or not fnmatchcase(parts[-1], pattern):
            continue
        read_bytes += found.st_size
        if (
            max(looked_at - MAX_ENTRIES_LOOKED_AT, read_bytes - MAX_SEARCHED_BYTES) > 0
            or len(matches) >= MAX_MATCHES
        ):
            is_truncated = True
            break
        matches += _matches(root, parts, text)
    is_truncated = is_truncated or len(matches) > MAX_MATCHES
    told: Told = {"matches": matches[:MAX_MATCHES], "is_truncated": is_truncated}
    if is_truncated:
        told["note"] = "not everything was searched or shown; search in a folder, or for more text"
    return told


def decoded(content: bytes, encoding: str, path: str) -> str:
    """The text of a file. Raises `ToolError` if writing it back would not give the same bytes."""
    try:
        text = content.decode(encoding)
    except UnicodeDecodeError as error:
        raise ToolError(
            f"{path!r} is not {encoding}: byte {error.start} is 0x{content[error.start]:02x}. Give "
            "another encoding, or 'base64' if it is no text"
        ) from error
    if encoding == "utf-8" and "\0" in text:
        raise ToolError(f"{path!r} holds NUL bytes, so it is no text; read it as 'base64'")
    if text.encode(encoding) != content:
        raise ToolError(f"{path!r} would not survive as {encoding}; use 'base64'")
    return text


def encoded(text: str, encoding: str, path: str) -> bytes:
    try:
        return text.encode(encoding)
    except UnicodeEncodeError as error:
        raise ToolError(
            f"{text[error.start]!r} cannot be written to {path!r} as {encoding}, so nothing was "
            "changed"
        ) from error


def _existing(root: int, parts: tuple[str, ...]) -> File:
    file = read_file(root, parts)
    if file is None:
        raise ToolError(f"there is no {'/'.join(parts)!r} in the workspace")
    return file


def _is_crlf(content: bytes) -> bool:
    """Whether every line of it ends with CR LF."""
    ends = content.count(b"\n")
    return ends > 0 and content.count(b"\r\n") == ends


def _lines_kept(text: str) -> list[str]:
    """Lines by LF alone, so that their numbers are those of editors and compilers."""
    lines = text.split("\n")
    kept = [line + "\n" for line in lines[:-1]]
    return [*kept, lines[-1]] if lines[-1] else kept


def _walk(
    root: int, top: tuple[str, ...], *, deep: bool
) -> Iterator[tuple[tuple[str, ...], os.stat_result]]:
    """Folders level by level, each sorted; never through a link."""
    level = [top]
    while level:
        folders = []
        for parts in level:
            try:
                entries = _entries(root, parts)
            except ToolError:
                if parts == top:
                    raise
                continue  # gone meanwhile
            for name, found in entries:
                yield (*parts, name), found
                is_entered = name not in SKIPPED_FOLDERS and len(parts) < MAX_DEPTH
                if stat.S_ISDIR(found.st_mode) and is_entered:
                    folders.append((*parts, name))
        level = folders if deep else []


def _entries(root: int, parts: tuple[str, ...]) -> list[tuple[str, os.stat_result]]:
    entries = []
    with opened_folder(root, parts) as folder, os.scandir(folder) as scan:
        for entry in scan:
            if is_of_git(entry.name) or entry.name.startswith(TEMPORARY_PREFIX):
                continue
            if (found := kind_of(folder, entry.name)) is not None:
                entries.append((entry.name, found))
            if len(entries) > MAX_ENTRIES_LOOKED_AT:
                break
    return sorted(entries, key=lambda entry: entry[0])


def _entry(parts: tuple[str, ...], found: os.stat_result) -> Told:
    path = "/".join(parts)
    entry: Told = {"path": path, "kind": described(found).split(",")[0].split(" ", 1)[-1]}
    if stat.S_ISREG(found.st_mode):
        entry["bytes"] = found.st_size
    try:
        path.encode()
    except UnicodeEncodeError:  # a name in another encoding: shown, but no tool can be given it
        entry |= {"path": os.fsencode(path).decode(errors="backslashreplace"), "is_escaped": True}
    return entry


def _matches(root: int, parts: tuple[str, ...], text: str) -> list[JsonValue]:
    if is_secret(parts):
        return []
    try:
        file = read_file(root, parts)
        content = "" if file is None else file.content.decode()
    except (ToolError, UnicodeDecodeError):
        return []
    if text not in content or "\0" in content:
        return []
    return [
        {"path": "/".join(parts), "line": number, "text": line.strip("\r")[:MAX_MATCH_CHARACTERS]}
        for number, line in enumerate(content.split("\n"), 1)
        if text in line
    ]
