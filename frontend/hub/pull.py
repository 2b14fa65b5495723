"""`pull`: a model of the hub as a folder that is complete and verified, or an error that says what is missing."""
from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from uaii.frontend.hub.choose import Choice, Wish, choose
from uaii.frontend.hub.http import Client
from uaii.frontend.hub.job import Job, Note, shards
from uaii.frontend.hub.listing import Listing, fetch_listing
from uaii.frontend.hub.record import Done, Record, read_record
from uaii.frontend.hub.sources import Meter, Source
from uaii.frontend.hub.workplace import put_in_place, refuse_occupied, work_folder, working
from uaii.ir.diag import Malformed, Usage
from uaii.ir.loc import File


@dataclass
class Pulled:
    """A complete folder. `model` is what a compile takes; sizes in bytes; `fetched` were not there before, `via` brought them."""

    repo: str
    commit: str | None
    folder: Path
    model: Path
    files: dict[str, Done]
    fetched: list[str] = field(default_factory=list)
    via: list[str] = field(default_factory=list)

    @property
    def bytes(self) -> int:
        """The size of the model's files together."""
        return sum(d.size for d in self.files.values())


def pull(client: Client, source: Source, repo: str, out: Path, *, revision: str = "main", wish: Wish | None = None,
         meter: Meter | None = None, note: Note = lambda text: None) -> Pulled:
    """Fetches what is not there yet; `out` appears or changes only when every file is there and verified.

    Raises Usage N703 to N705, N708, N711, N712, Malformed N706 and N709 (incomplete), Unsupported N707.
    """
    out = out.resolve()
    refuse_occupied(out, repo)
    listing = fetch_listing(client, repo, revision)
    choice = choose(listing, wish or Wish())
    for text in choice.notes:
        note(text)
    before = read_record(out)
    if before is not None:
        names = _wanted(out, before, choice)
        if all(before.same(n, listing) and before.intact(out, n) for n in names):
            return _pulled(listing, out, choice, before, names)
    with working(out) as work:
        job = Job(client, source, listing, choice, work, out, before, meter or Meter(lambda *_: None))
        job.gather(note)
        job.prove(note)
        put_in_place(work, out, job.record)
    for text in source.notes:
        note(text)
    return _pulled(listing, out, choice, job.record, job.names, job.fetched, source.via)


def offline(repo: str, out: Path, *, revision: str | None = None, wish: Wish | None = None) -> Pulled:
    """What an earlier pull has put at `out`, complete. Raises Malformed N710 that lists what is missing, Usage N710."""
    out = out.resolve()
    refuse_occupied(out, repo)
    folder = out if read_record(out) else work_folder(out)
    record = read_record(folder)
    if record is None or record.listing.repo != repo:
        raise Usage("N710", f"offline, and no pull of {repo} is at {out}", hint="run it once with the network")
    at = record.listing
    if revision is not None and revision not in (at.revision, at.commit):
        raise Usage("N710", f"offline, and {out} holds revision {at.revision}, not {revision}", hint="run it with the network")
    choice = choose(at, wish or Wish())
    names = _wanted(folder, record, choice)
    missing = [n for n in names if not record.intact(folder, n)]
    if missing or folder != out:
        more = [f"the shards that {choice.index} names"] if choice.index in missing else []
        missing += more or ([] if missing else ["the last check of all files"])
        raise Malformed("N710", f"offline, and {repo} is not complete: missing {', '.join(missing[:4])}"
                        + (f" and {len(missing) - 4} more" if missing[4:] else ""), File(str(folder)), notes=missing[4:40],
                        hint="run it with the network: what has arrived is kept")
    return _pulled(at, out, choice, record, names)


def _wanted(folder: Path, record: Record, choice: Choice) -> list[str]:
    """The names of a choice, and the shards when the index is there to name them."""
    more = shards(folder / choice.index) if choice.index and record.intact(folder, choice.index) else []
    return [*choice.names, *(n for n in more if n not in choice.names)]


def _pulled(listing: Listing, out: Path, choice: Choice, record: Record, names: list[str],
            fetched: Sequence[str] = (), via: Sequence[str] = ()) -> Pulled:
    model = out / choice.main if choice.main else out
    return Pulled(listing.repo, listing.commit, out, model, {n: record.done[n] for n in names}, list(fetched), list(via))
