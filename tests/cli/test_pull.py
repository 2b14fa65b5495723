"""`uaii pull` against a hub that works: what is fetched, what a second run does, tokens, offline."""
from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from hub_cases import EACH_WAY, INDEX, MODEL, SHARDS, Bench, error
from hub_server import COMMIT, cut, elsewhere, moved, stall, status

import uaii

pytestmark = EACH_WAY
ROOT = Path(uaii.__file__).resolve().parent.parent


def test_a_model_in_shards_is_complete_and_each_file_asked_for_once(bench: Bench) -> None:
    result = bench.pull()
    assert (result.exit_code, result.stdout) == (0, "pulled org/tiny -> model\n"), result.stderr
    assert bench.same()
    assert sorted(bench.hub.asked()) == sorted(MODEL)
    assert bench.hub.asked()[0] == "config.json"
    assert {h for _, path, _ in bench.hub.log if (h := path.split("/resolve/")[0])} == {
        "/org/tiny", "/api/models/org/tiny/revision/main"}
    assert all(f"/resolve/{COMMIT}/" in path for m, path, _ in bench.hub.log[1:])
    assert bench.hidden() == []


def test_it_works_with_an_empty_path(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    assert bench.pull().exit_code == 0
    assert bench.same()


def test_a_hub_that_states_nothing_is_enough(bench: Bench) -> None:
    bench.hub.sizes = bench.hub.linked = False
    bench.hub.commit = None
    assert bench.pull().exit_code == 0
    assert bench.same()
    assert all("/resolve/main/" in path for m, path, _ in bench.hub.log[1:])
    bench.hub.log.clear()
    assert bench.pull().exit_code == 0
    assert bench.hub.asked() == []


def test_json_says_what_came(bench: Bench) -> None:
    said = json.loads(bench.pull("--format", "json").stdout)
    assert {f["name"]: f["bytes"] for f in said["files"]} == {n: len(bench.hub.files[n]) for n in MODEL}
    assert (said["commit"], said["model"], sorted(said["fetched"])) == (COMMIT, str(bench.here / "model"), sorted(MODEL))
    assert said["via"] == [bench.via]
    said = json.loads(bench.pull("--format", "json").stdout)
    assert (said["fetched"], said["via"]) == ([], [])


def test_the_folder_has_the_name_of_the_repository(bench: Bench) -> None:
    assert bench.uaii("pull", f"{bench.hub.url}/org/tiny", "--via", bench.via).exit_code == 0
    assert bench.same(folder="tiny")


def test_one_file_of_weights(bench: Bench) -> None:
    bench.hub.files = {"config.json": bench.hub.files["config.json"], "model.safetensors": bench.hub.files[SHARDS[0]],
                       "model.fp16.safetensors": b"x", "additional_chat_templates/tool.jinja": b"{{ x }}"}
    assert bench.pull().exit_code == 0
    assert bench.names() == ["additional_chat_templates/tool.jinja", "config.json", "model.safetensors"]


# --- again

def test_a_second_pull_fetches_nothing(bench: Bench) -> None:
    bench.pull()
    before = {p: p.stat().st_mtime_ns for p in (bench.here / "model").iterdir()}
    bench.hub.log.clear()
    result = bench.pull()
    assert (result.exit_code, result.stdout) == (0, "pulled org/tiny -> model\n")
    assert bench.hub.asked() == []
    assert {p: p.stat().st_mtime_ns for p in (bench.here / "model").iterdir()} == before


def test_a_second_pull_reads_no_weights(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    bench.pull()
    monkeypatch.setattr("uaii.frontend.hub.record.digest", lambda path: pytest.fail(f"{path} was read"))
    assert bench.pull().exit_code == 0


def test_killed_between_the_two_renames(bench: Bench) -> None:
    bench.pull()
    (bench.here / "model" / "mine.txt").write_text("mine")
    (bench.here / "model").rename(bench.here / ".model.uaii-pull-old")
    assert bench.pull().exit_code == 0
    assert (bench.here / "model" / "mine.txt").read_text() == "mine"
    assert bench.names() == sorted([*MODEL, "mine.txt"])
    assert bench.hidden() == []


@pytest.mark.parametrize("harm", ["removed", "cut", "changed"])
def test_a_second_pull_mends_what_was_harmed(bench: Bench, harm: str) -> None:
    bench.pull()
    shard = bench.here / "model" / SHARDS[1]
    text = shard.read_bytes()
    shard.unlink()
    if harm != "removed":
        shard.write_bytes(text[:-1] if harm == "cut" else text[:-1] + bytes([text[-1] ^ 1]))
    (bench.here / "model" / "mine.txt").write_text("mine")
    bench.hub.log.clear()
    assert bench.pull().exit_code == 0
    assert bench.hub.asked() == [SHARDS[1]]
    assert (bench.here / "model" / "mine.txt").read_text() == "mine"
    (bench.here / "model" / "mine.txt").unlink()
    assert bench.same()
    assert bench.hidden() == []


def test_a_file_that_was_only_touched_is_read_and_kept(bench: Bench) -> None:
    bench.pull()
    os.utime(bench.here / "model" / SHARDS[0], (1, 1))
    bench.hub.log.clear()
    assert bench.pull().exit_code == 0
    assert bench.hub.asked() == []


def test_a_new_commit_fetches_what_changed_and_drops_what_is_gone(bench: Bench) -> None:
    bench.pull()
    bench.hub.commit = "d" * 40
    bench.hub.files["tokenizer.json"] += b"\n"
    del bench.hub.files["generation_config.json"]
    bench.hub.log.clear()
    assert bench.pull().exit_code == 0
    assert bench.hub.asked() == ["tokenizer.json"]
    assert bench.same([n for n in MODEL if n != "generation_config.json"])


def test_a_new_commit_that_fails_leaves_the_old_model(bench: Bench) -> None:
    bench.pull()
    old = {p.name: p.read_bytes() for p in (bench.here / "model").iterdir()}
    bench.hub.commit = "d" * 40
    bench.hub.files["tokenizer.json"] += b"\n"
    bench.hub.faults["tokenizer.json"] = [status(404)]
    assert bench.pull().exit_code == 4
    assert {p.name: p.read_bytes() for p in (bench.here / "model").iterdir()} == old


def started(bench: Bench) -> subprocess.Popen[str]:
    """The pull as a process of its own."""
    call = [sys.executable, "-c", "from uaii.cli.main import main; main()", "pull", "org/tiny", "--outdir", "model",
            "--via", bench.via]
    return subprocess.Popen(call, env={**os.environ, "PYTHONPATH": str(ROOT)}, cwd=bench.here, stderr=subprocess.PIPE, text=True)


def test_a_killed_pull_goes_on_where_it_was(bench: Bench) -> None:
    bench.hub.faults[SHARDS[1]] = [stall(0.6)]
    process = started(bench)
    part = bench.here / ".model.uaii-pull" / f"{SHARDS[1]}.uaii-part"
    try:
        assert bench.hub.stalled.wait(30)
        while not part.exists() or not part.stat().st_size:
            assert process.poll() is None
            bench.hub.released.wait(0.01)
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()
    bench.hub.released.set()
    assert not (bench.here / "model").exists()
    have = part.stat().st_size
    bench.hub.log.clear()
    assert bench.pull().exit_code == 0
    assert bench.hub.asked() == [SHARDS[1]]
    assert bench.hub.headers(SHARDS[1])[0]["Range"] == f"bytes={have}-"
    assert bench.same()
    assert bench.hidden() == []


def test_sigterm_ends_it_with_130(bench: Bench) -> None:
    bench.hub.faults[SHARDS[0]] = [stall(0.6)]
    process = started(bench)
    assert bench.hub.stalled.wait(30)
    process.terminate()
    _, stderr = process.communicate(timeout=30)
    assert (process.returncode, stderr.splitlines()[-1]) == (130, "interrupted")
    assert not (bench.here / "model").exists()


def test_two_pulls_at_once_do_not_meet(bench: Bench) -> None:
    bench.hub.faults[SHARDS[0]] = [stall(0.6)]
    process = started(bench)
    try:
        assert bench.hub.stalled.wait(30)
        result = bench.pull("--format", "json")
        assert (error(result)["code"], result.exit_code) == ("N705", 2)
    finally:
        process.kill()
        process.wait()


# --- where it may write

def test_a_folder_of_others_is_left_alone(bench: Bench) -> None:
    (bench.here / "model").mkdir()
    (bench.here / "model" / "config.json").write_text("mine")
    result = bench.pull("--format", "json")
    assert (error(result)["code"], result.exit_code) == ("N705", 2)
    assert bench.names() == ["config.json"]
    assert bench.hub.log == []


def test_an_empty_folder_is_filled(bench: Bench) -> None:
    (bench.here / "model").mkdir()
    assert bench.pull().exit_code == 0
    assert bench.same()


def test_a_folder_of_another_repository_is_left_alone(bench: Bench) -> None:
    bench.pull()
    bench.hub.repo = "org/other"
    assert error(bench.pull("--format", "json", repo="org/other"))["code"] == "N705"
    assert bench.same()


def test_a_place_that_cannot_be_written(bench: Bench) -> None:
    (bench.here / "file").write_text("")
    result = bench.uaii("pull", "org/tiny", "--outdir", "file/model", "--format", "json")
    assert (error(result)["code"], result.exit_code) == ("N711", 2)
    assert bench.hub.asked() == []


@pytest.mark.parametrize("name", ["../x.safetensors", "/etc/x.safetensors", "a/../../x.safetensors", "a\\..\\x.safetensors",
                                  "C:x.safetensors", "x\n.safetensors", "a//x.safetensors", "./x.safetensors"])
def test_no_name_leaves_the_folder(bench: Bench, name: str) -> None:
    index = json.loads(bench.hub.files[INDEX])
    index["weight_map"]["evil"] = name
    bench.hub.files[INDEX] = json.dumps(index).encode()
    bench.hub.files[name] = b"evil"
    by_index = bench.pull("--format", "json")
    by_listing = bench.pull("--format", "json", "--include", "*x*.safetensors")
    for result in (by_index, by_listing):
        assert (error(result)["code"], result.exit_code) == ("N706", 4)
    assert sorted(p.name for p in bench.here.iterdir()) in ([".model.uaii-pull"], [])
    assert not list(bench.here.parent.rglob("x*.safetensors"))


# --- tokens and redirects

def tokens(bench: Bench) -> list[str | None]:
    """The Authorization header of every request."""
    return [h.get("Authorization") for _, _, h in bench.hub.log]


@pytest.mark.parametrize("place", ["HF_TOKEN", "HUGGING_FACE_HUB_TOKEN", "file"])
def test_the_token_is_sent_to_the_hub_and_to_no_other_host(bench: Bench, place: str, tmp_path: Path,
                                                           monkeypatch: pytest.MonkeyPatch) -> None:
    bench.hub.token = "hf_secret"
    if place == "file":
        (tmp_path / "home").mkdir()
        (tmp_path / "home" / "token").write_text("hf_secret\n")
    else:
        monkeypatch.setenv(place, "hf_secret")
    bench.hub.faults = {n: [elsewhere] for n in SHARDS}
    result = bench.pull()
    assert (result.exit_code, bench.same()) == (0, True), result.stderr
    at = {path.startswith("elsewhere"): h.get("Authorization") for _, path, h in bench.hub.log}
    assert at == {False: "Bearer hf_secret", True: None}
    assert len([1 for _, path, _ in bench.hub.log if path.startswith("elsewhere")]) == 2
    assert "hf_secret" not in result.output


def test_without_a_token_none_is_sent(bench: Bench) -> None:
    bench.pull()
    assert set(tokens(bench)) == {None}


def test_gated(bench: Bench) -> None:
    bench.hub.token = "hf_secret"
    result = bench.pull("--format", "json")
    assert (result.exit_code, error(result)["code"]) == (2, "N704")
    assert "gated" in error(result)["says"] and "set HF_TOKEN" in error(result)["hint"]
    assert (bench.names(), bench.waits, len(bench.hub.log), bench.hidden()) == ([], [], 1, [])


@pytest.mark.parametrize(("code", "token", "wanted", "word"), [
    (401, "", "N704", "asks for a login"), (401, "hf_old", "N704", "does not take the token"),
    (403, "hf_old", "N704", "gated"), (404, "", "N703", "no public model"), (404, "hf_old", "N703", "for this token"),
    (410, "", "N709", "refuses")])
def test_refusals_are_told_apart(bench: Bench, code: int, token: str, wanted: str, word: str,
                                 monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", token)
    bench.hub.faults["listing"] = [status(code), status(code)]
    result = bench.pull("--format", "json")
    assert error(result)["code"] == wanted
    assert word in error(result)["says"]
    assert bench.waits == []
    assert "hf_old" not in result.output


@pytest.mark.parametrize("code", [401, 403])
def test_gated_files_under_an_open_listing(bench: Bench, code: int) -> None:
    bench.hub.faults["config.json"] = [status(code, X_Error_Code="GatedRepo")]
    result = bench.pull("--format", "json")
    assert (result.exit_code, error(result)["code"], bench.hidden()) == (2, "N704", [])


def test_no_such_revision(bench: Bench) -> None:
    bench.hub.faults["listing"] = [status(404, X_Error_Code="RevisionNotFound")]
    assert error(bench.pull("--revision", "v9", "--format", "json"))["says"] == "org/tiny has no revision v9"


def test_a_revision_is_one_part_of_the_address(bench: Bench) -> None:
    bench.pull("--revision", "refs/pr/1")
    assert bench.hub.log[0][1] == "/api/models/org/tiny/revision/refs/pr/1"
    assert bench.same()


@pytest.mark.parametrize("to", ["file:///etc/passwd", "ftp://127.0.0.1/x", ""])
def test_redirects_that_lead_nowhere(bench: Bench, to: str) -> None:
    bench.hub.faults["config.json"] = [moved(to)]
    result = bench.pull("--format", "json")
    assert (error(result)["code"], error(result)["why"]) == ("N709", "a redirect that leads nowhere")


def test_redirects_end(bench: Bench) -> None:
    bench.hub.faults["config.json"] = [moved(f"/org/tiny/resolve/{COMMIT}/config.json")] * 30
    assert "redirects" in error(bench.pull("--format", "json"))["why"]


@pytest.mark.parametrize("endpoint", ["ftp://x", "hub", "http://user:word@127.0.0.1", "http://"])
def test_an_endpoint_must_be_an_address(bench: Bench, endpoint: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_ENDPOINT", endpoint)
    result = bench.pull("--format", "json")
    assert (error(result)["code"], result.exit_code) == ("N702", 2)
    assert "word" not in result.output


def test_a_token_with_a_line_break_is_refused_unseen(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_a\nX-Evil: 1")
    result = bench.pull("--format", "json")
    assert error(result)["code"] == "N702"
    assert "hf_a" not in result.output and "Evil" not in result.output


# --- names

@pytest.mark.parametrize("name", ["gpt-4", "gpt-4o", "gemini-1.5-pro", "openai/gpt-4o", "claude-3-opus"])
def test_models_behind_an_api_only(bench: Bench, name: str) -> None:
    result = bench.uaii("pull", name, "--format", "json")
    assert (error(result)["code"], result.exit_code, bench.hub.log) == ("U004", 3, [])


@pytest.mark.parametrize("name", ["a/b/c", "../x", "org//x", "org/x y", "https://example.org/a/b", "-x/y", "org/a..b"])
def test_names_that_are_no_repository(bench: Bench, name: str) -> None:
    result = bench.uaii("pull", "--format", "json", "--", name)
    assert (error(result)["code"], result.exit_code, bench.hub.log) == ("N701", 2, [])


# --- offline

@pytest.mark.parametrize("way", ["--offline", "HF_HUB_OFFLINE"])
def test_offline_uses_what_is_there(bench: Bench, way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    bench.pull()
    bench.hub.log.clear()
    if way == "HF_HUB_OFFLINE":
        monkeypatch.setenv(way, "1")
    result = bench.pull(*(["--offline"] if way == "--offline" else []))
    assert (result.exit_code, result.stdout, bench.hub.log) == (0, "pulled org/tiny -> model\n", [])


def test_offline_lists_what_is_missing(bench: Bench) -> None:
    bench.pull()
    for name in ("tokenizer.json", SHARDS[1]):
        (bench.here / "model" / name).unlink()
    said = error(bench.pull("--offline", "--format", "json"))
    assert said["code"] == "N710"
    assert said["says"].endswith(f"missing tokenizer.json, {SHARDS[1]}")


def test_offline_after_an_interrupted_pull(bench: Bench) -> None:
    bench.hub.faults[SHARDS[1]] = [cut(0.6), *[status(503)] * 9]
    assert bench.pull().exit_code == 4
    result = bench.pull("--offline", "--format", "json")
    assert (error(result)["code"], result.exit_code) == ("N710", 4)
    assert error(result)["says"].endswith(f"missing {SHARDS[1]}")


def test_offline_with_nothing(bench: Bench) -> None:
    result = bench.pull("--offline", "--format", "json")
    assert (error(result)["code"], result.exit_code) == ("N710", 2)


def test_offline_knows_its_revision(bench: Bench) -> None:
    bench.pull()
    assert bench.pull("--offline", "--revision", COMMIT).exit_code == 0
    assert error(bench.pull("--offline", "--revision", "v2", "--format", "json"))["code"] == "N710"


# --- what is said of a model that will not compile

def test_latent_attention_is_pointed_at_gguf_before_the_weights_come(bench: Bench) -> None:
    config = json.loads(bench.hub.files["config.json"]) | {"model_type": "kimi_k9", "architectures": ["KimiK9ForCausalLM"],
                                                           "kv_lora_rank": 512}
    bench.hub.files["config.json"] = json.dumps(config).encode()
    bench.hub.faults[SHARDS[0]] = [status(404)]
    result = bench.pull()
    assert "note: HF MLA; use GGUF" in result.stderr


def test_an_unknown_architecture_is_noted_and_pulled(bench: Bench) -> None:
    config = json.loads(bench.hub.files["config.json"]) | {"model_type": "foo", "architectures": ["FooForCausalLM"]}
    bench.hub.files["config.json"] = json.dumps(config).encode()
    result = bench.pull()
    assert result.exit_code == 0
    assert "note: uaii does not compile this model" in result.stderr and "FooForCausalLM" in result.stderr


def test_a_plain_llama_gets_no_note(bench: Bench) -> None:
    assert [x for x in bench.pull().stderr.splitlines() if "note" in x] == [
        "note: x-Q4_0.gguf left out: the repository has safetensors"]
