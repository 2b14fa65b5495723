"""`uaii pull` against a hub that fails: never "pulled" unless every file is whole, and never more tries than needed."""
from __future__ import annotations

import json
import time
from email.utils import formatdate

import pytest
from hub_cases import EACH_WAY, INDEX, MODEL, SHARDS, Bench, error
from hub_server import cut, elsewhere, instead, length, page, status, wrong_range

pytestmark = EACH_WAY
SECOND = SHARDS[1]
POINTER = b"version https://git-lfs.github.com/spec/v1\noid sha256:" + b"0" * 64 + b"\nsize 4976698672\n"


def refused(bench: Bench, name: str = SECOND, code: int = 4) -> str:
    """Pulls, expects the file to be called missing, and that nothing looks finished. Returns the reason."""
    result = bench.pull()
    what = "shard" if name in SHARDS else "file"
    assert result.exit_code == code
    assert f"pull incomplete: missing {what} {name}\n" in result.stderr
    assert "pulled" not in result.output
    assert not (bench.here / "model").exists()
    return next(x for x in result.stderr.splitlines() if "= why" in x)


# --- what passes by

@pytest.mark.parametrize("fault", [*(status(n) for n in (408, 429, 500, 502, 503, 504)), cut(0.6), cut(0)])
@pytest.mark.parametrize("name", ["listing", "config.json", INDEX, SECOND])
def test_one_failure_is_tried_again(bench: Bench, name: str, fault: object) -> None:
    bench.hub.faults[name] = [fault]  # type: ignore[list-item]
    result = bench.pull()
    assert (result.exit_code, bench.same(), bench.waits) == (0, True, [0.5]), result.stderr


def test_pauses_grow_and_end(bench: Bench) -> None:
    bench.hub.faults[SECOND] = [status(503)] * 99
    assert "HTTP status 503; tried 6 times" in refused(bench)
    assert bench.waits == [0.5, 1, 2, 4, 8]
    assert bench.hub.asked().count(SECOND) == 6


def test_a_drop_goes_on_with_the_rest(bench: Bench) -> None:
    bench.hub.faults[SECOND] = [cut(0.6), status(503), cut(0.5)]
    assert bench.pull().exit_code == 0
    assert bench.same()
    size = len(bench.hub.files[SECOND])
    first = int(size * 0.6)
    second = first + int((size - first) * 0.5)
    assert [h.get("Range") for h in bench.hub.headers(SECOND)] == [None, f"bytes={first}-", f"bytes={first}-", f"bytes={second}-"]


def test_a_server_without_ranges_starts_over(bench: Bench) -> None:
    bench.hub.ranges = False
    bench.hub.faults[SECOND] = [cut(0.6)]
    assert bench.pull().exit_code == 0
    assert bench.same()


def test_a_206_for_other_bytes_is_not_believed(bench: Bench) -> None:
    bench.hub.sizes = bench.hub.linked = False
    bench.hub.faults[SECOND] = [cut(0.6), wrong_range]
    assert bench.pull().exit_code == 0
    assert bench.same()


def test_a_file_that_changed_meanwhile_is_not_joined(bench: Bench) -> None:
    bench.hub.sizes = bench.hub.linked = False
    other = bytes(x ^ 1 for x in bench.hub.files[SECOND])
    bench.hub.faults[SECOND] = [lambda h, text: cut(0.6)(h, other)]
    assert bench.pull().exit_code == 0
    assert bench.same()


def test_a_storage_host_whose_signature_ran_out_is_asked_anew(bench: Bench) -> None:
    bench.hub.faults[SECOND] = [lambda h, text: h.answer(302, b"", {"Location": h.hub.elsewhere + "/expired"}), elsewhere]
    assert bench.pull().exit_code == 0
    assert (bench.same(), bench.waits) == (True, [0.5])


def test_ever_more_of_a_large_file_is_not_a_failure(bench: Bench) -> None:
    bench.hub.files["added_tokens.json"] = json.dumps({"x" * (20 << 20): 1}).encode()
    bench.hub.faults["added_tokens.json"] = [cut(0.15)] * 7
    assert bench.pull().exit_code == 0
    assert bench.waits == [0.5] * 7


# --- Retry-After

@pytest.mark.parametrize(("said", "waits"), [("3", [3.0]), ("0", [0.0]), ("soon", [0.5]), ("-5", [0.5])])
def test_retry_after_is_the_pause(bench: Bench, said: str, waits: list[float]) -> None:
    bench.hub.faults["config.json"] = [status(429, Retry_After=said)]
    assert bench.pull().exit_code == 0
    assert bench.waits == waits


def test_retry_after_may_be_a_date(bench: Bench) -> None:
    bench.hub.faults["config.json"] = [status(503, Retry_After=formatdate(time.time() + 60, usegmt=True))]
    assert bench.pull().exit_code == 0
    assert 30 < bench.waits[0] <= 61


def test_retry_after_of_an_hour_is_told_and_not_waited_for(bench: Bench) -> None:
    bench.hub.faults[SECOND] = [status(429, Retry_After="3600")]
    assert "asks to wait 3600 s" in refused(bench)
    assert bench.waits == []


# --- what does not pass by

@pytest.mark.parametrize("name", ["config.json", INDEX, *SHARDS])
def test_a_file_that_is_listed_and_not_there(bench: Bench, name: str) -> None:
    bench.hub.faults[name] = [status(404, X_Error_Code="EntryNotFound")]
    assert "404" in refused(bench, name)
    assert (bench.waits, bench.hub.asked().count(name)) == ([], 1)


def test_a_shard_that_only_the_index_names(bench: Bench) -> None:
    del bench.hub.files[SECOND]
    assert "404" in refused(bench)


def test_a_transfer_that_always_ends_early(bench: Bench) -> None:
    bench.hub.ranges = False
    bench.hub.faults[SECOND] = [cut(0.6)] * 99
    size = len(bench.hub.files[SECOND])
    assert f"cut off at {int(size * 0.6)} of {size} bytes" in refused(bench)


@pytest.mark.parametrize("states", ["listing", "answer", "nothing"])
def test_a_short_file_under_its_own_length(bench: Bench, states: str) -> None:
    bench.hub.sizes, bench.hub.linked = states == "listing", states == "answer"
    text = bench.hub.files[SECOND]
    said = {"X_Linked_Size": str(len(text))} if states == "answer" else {}
    bench.hub.faults[SECOND] = [instead(text[:-100], **said)] * 99
    why = refused(bench)
    assert ("truncated" if states == "nothing" else f"offers {len(text) - 100} bytes and the file has {len(text)}") in why
    bench.hub.faults.clear()
    assert bench.pull().exit_code == 0
    assert bench.same()


@pytest.mark.parametrize("wrong", [-100, 100])
def test_a_content_length_that_lies(bench: Bench, wrong: int) -> None:
    size = len(bench.hub.files[SECOND])
    bench.hub.faults[SECOND] = [length(size + wrong)] * 99
    assert f"offers {size + wrong} bytes and the file has {size}" in refused(bench)


@pytest.mark.parametrize("states", ["listing", "answer"])
def test_other_bytes_of_the_same_length(bench: Bench, states: str) -> None:
    bench.hub.sizes, bench.hub.linked = states == "listing", states == "answer"
    text = bench.hub.files[SECOND]
    other = text[:-1] + bytes([text[-1] ^ 1])
    bench.hub.faults[SECOND] = [lambda h, t: h.answer(200, other, h.stated(text))] * 99
    assert "sha256" in refused(bench)
    assert bench.hub.asked().count(SECOND) == 6
    bench.hub.faults.clear()
    assert bench.pull().exit_code == 0
    assert bench.same()


@pytest.mark.parametrize("name", ["config.json", "tokenizer.json", SECOND])
def test_a_web_page_with_status_200(bench: Bench, name: str) -> None:
    bench.hub.sizes = False
    bench.hub.faults[name] = [page]
    assert "web page" in refused(bench, name)


def test_a_web_page_that_calls_itself_a_file(bench: Bench) -> None:
    bench.hub.sizes = bench.hub.linked = False
    bench.hub.faults["tokenizer.json"] = [instead(b"<!DOCTYPE html><html></html>")]
    assert "web page" in refused(bench, "tokenizer.json")


def test_a_web_page_under_a_name_that_could_hold_any_text(bench: Bench) -> None:
    bench.hub.sizes = bench.hub.linked = False
    bench.hub.files["merges.txt"] = b"a b"
    bench.hub.faults["merges.txt"] = [instead(b"<!-- portal --> Sign in", Content_Type="text/html")]
    assert "web page" in refused(bench, "merges.txt")


def test_a_web_page_instead_of_the_listing(bench: Bench) -> None:
    bench.hub.faults["listing"] = [page]
    result = bench.pull("--format", "json")
    assert (error(result)["code"], result.exit_code) == ("N709", 4)
    assert "web page" in error(result)["why"]


def test_json_that_is_no_listing(bench: Bench) -> None:
    bench.hub.faults["listing"] = [instead(b'{"siblings": 3}')]
    assert error(bench.pull("--format", "json"))["code"] == "N706"


@pytest.mark.parametrize("name", ["tokenizer.json", SECOND])
def test_a_pointer_instead_of_the_file(bench: Bench, name: str) -> None:
    bench.hub.sizes = bench.hub.linked = False
    bench.hub.faults[name] = [instead(POINTER)]
    assert "Git LFS pointer (real size 4976698672 bytes)" in refused(bench, name)


def test_half_a_json_file(bench: Bench) -> None:
    bench.hub.sizes = bench.hub.linked = False
    bench.hub.faults["tokenizer.json"] = [instead(bench.hub.files["tokenizer.json"][:100])]
    assert "not whole JSON" in refused(bench, "tokenizer.json")


def test_an_index_without_shards(bench: Bench) -> None:
    bench.hub.files[INDEX] = b'{"weight_map": {}}'
    result = bench.pull("--format", "json")
    assert (error(result)["code"], result.exit_code) == ("N709", 4)


def test_shards_that_do_not_hold_what_the_index_says(bench: Bench) -> None:
    bench.hub.sizes = bench.hub.linked = False
    bench.hub.files[SECOND] = bench.hub.files[SHARDS[0]]
    assert bench.pull().exit_code == 4
    assert not (bench.here / "model").exists()


def test_a_fault_of_the_publisher_is_told_and_the_files_are_given(bench: Bench) -> None:
    bench.hub.files[SECOND] = bench.hub.files[SHARDS[0]]
    result = bench.pull()
    assert (result.exit_code, bench.same()) == (0, True)
    assert "as published, and yet" in result.stderr


def test_nobody_answers(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:1")
    result = bench.pull("--format", "json")
    assert (error(result)["code"], result.exit_code) == ("N709", 4)
    assert "127.0.0.1:1 cannot be reached" in error(result)["why"]


def test_what_has_arrived_is_kept_for_the_next_run(bench: Bench) -> None:
    bench.hub.faults[SECOND] = [cut(0.6), *[status(503)] * 99]
    refused(bench)
    bench.hub.faults.clear()
    bench.hub.log.clear()
    assert bench.pull().exit_code == 0
    assert bench.hub.asked() == [SECOND]
    assert bench.hub.headers(SECOND)[0]["Range"] == f"bytes={int(len(bench.hub.files[SECOND]) * 0.6)}-"
    assert (bench.same(MODEL), bench.hidden()) == (True, [])


def test_what_has_arrived_of_another_commit_is_not_used(bench: Bench) -> None:
    bench.hub.faults[SECOND] = [cut(0.6), *[status(503)] * 99]
    refused(bench)
    bench.hub.faults.clear()
    bench.hub.commit = "d" * 40
    text = bench.hub.files[SECOND]
    bench.hub.files[SECOND] = text[:-1] + bytes([text[-1] ^ 1])
    bench.hub.log.clear()
    assert bench.pull().exit_code == 0
    assert "Range" not in bench.hub.headers(SECOND)[0]
    assert bench.same()
