"""The hidden folder that a pull works in, and how it becomes the folder that was asked for: whole, or not at all."""
from __future__ import annotations

import fcntl
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from uaii.frontend.hub.download import unwritable
from uaii.frontend.hub.record import RECORD, Record, read_record
from uaii.ir.diag import Usage
from uaii.ir.loc import File


def work_folder(out: Path) -> Path:
    """Where a pull into `out` keeps what has arrived."""
    return out.with_name(f".{out.name}.uaii-pull")


def _old_folder(out: Path) -> Path:
    return out.with_name(f".{out.name}.uaii-pull-old")


def refuse_occupied(out: Path, repo: str) -> None:
    """Raise Usage N705 when `out` is anything but absent, an empty folder, or an earlier pull of the repository."""
    if out.exists() and not out.is_dir():
        raise Usage("N705", f"{out} exists and is not a folder", File(str(out)), hint="choose another place with --outdir")
    if not out.is_dir() or not any(out.iterdir()):
        return
    there = read_record(out)
    if there is None:
        raise Usage("N705", f"{out} holds files that no pull has put there", File(str(out)),
                    why="a pull replaces the folder whole", hint="move them away, or choose another place with --outdir")
    if there.listing.repo != repo:
        raise Usage("N705", f"{out} holds {there.listing.repo}, not {repo}", File(str(out)),
                    hint="choose another place with --outdir")


@contextmanager
def working(out: Path) -> Iterator[Path]:
    """The work folder of `out`, kept for this process alone; it stays behind for the next try unless it is put in place.

    Raises Usage N705 when another pull works in it, N711 when it cannot be made.
    """
    work, old = work_folder(out), _old_folder(out)
    try:
        work.mkdir(parents=True, exist_ok=True)
        lock = os.open(work, os.O_RDONLY)
    except OSError as err:
        raise unwritable(work, err) from None
    try:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise Usage("N705", f"another uaii pull is at work on {out}", File(str(work)), hint="wait for it") from None
        except OSError:
            pass  # a file system without locks
        if not work.exists() or os.stat(work).st_ino != os.fstat(lock).st_ino:
            raise Usage("N705", f"another uaii pull has just put {out} in place", File(str(out)), hint="run it again")
        if old.exists() and not out.exists():
            old.rename(out)  # a pull was killed between the two renames of put_in_place
        yield work
    finally:
        if work.exists() and {p.name for p in work.iterdir()} <= {RECORD}:
            shutil.rmtree(work, ignore_errors=True)
        os.close(lock)


def keep(source: Path, name: str, work: Path) -> None:
    """Takes an intact file of the old folder over into the work folder, without a second copy where links work."""
    target = work / name
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        target.unlink(missing_ok=True)
        try:
            os.link(source / name, target)
        except OSError:
            shutil.copy2(source / name, target)
    except OSError as err:
        raise unwritable(target, err) from None


def put_in_place(work: Path, out: Path, record: Record) -> None:
    """Renames the work folder to `out`.

    What else an older `out` holds comes along: files of the user's own, and fetched ones whose content is still current.
    """
    before = read_record(out)
    fetched = before.done if before else {}
    current = {n: d for n, d in fetched.items() if n not in record.done and before and before.same(n, record.listing)}
    record.done |= {n: d for n, d in current.items() if (out / n).is_file()}
    try:
        shutil.rmtree(work / ".cache", ignore_errors=True)  # huggingface_hub's own notes
        record.save(work)
        if not out.exists() or not any(out.iterdir()):
            work.rename(out)
            return
        for path in sorted(p for p in out.rglob("*") if p.is_file() or p.is_symlink()):
            name = path.relative_to(out).as_posix()
            if not (work / name).exists() and (name in current or name not in fetched):
                keep(out, name, work)
        old = _old_folder(out)
        shutil.rmtree(old, ignore_errors=True)
        out.rename(old)
        work.rename(out)
        shutil.rmtree(old, ignore_errors=True)
    except OSError as err:
        raise unwritable(out, err) from None


def sweep(work: Path, wanted: set[str]) -> None:
    """Removes from the work folder what does not belong to the files that are wanted now."""
    expected = {RECORD} | {n + end for n in wanted for end in ("", ".uaii-part", ".etag.uaii-part")}
    for path in work.rglob("*"):
        if path.is_file() and path.relative_to(work).as_posix() not in expected and path.relative_to(work).parts[0] != ".cache":
            with suppress(OSError):
                path.unlink()
