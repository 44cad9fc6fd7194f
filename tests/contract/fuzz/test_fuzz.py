"""Replays the fuzzing corpus, and runs each target with a few mutations, which are the same in every run.

Only the test that finds a planted crash needs atheris.
"""

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

import recording
from fuzz import kept
from fuzz.cuts import pieces, pumped, ways
from fuzz.mutation import MAX_SIZE, Mutator
from fuzz.targets import TARGETS, load

ROOT = Path(__file__).resolve().parents[3]
RUNS = 400
"""Changed inputs for each target: about a second of work, with coverage measured."""
MAX_FILES = 60
MAX_BYTES = 200_000
HAS_ATHERIS = importlib.util.find_spec("atheris") is not None


def shown(name: str, data: bytes) -> str:
    return f"this input breaks {name}; keep it in fuzz/crashes/{name}/ when it is mended:\n{data!r}"


@pytest.fixture
def strangers():
    """A peer that sends anything: its messages are not validated, the responses to it are."""
    yield
    recording.waiting.clear()
    for digest in [digest for digest, said in recording.pending.items() if said.way == "received"]:
        del recording.pending[digest]


@pytest.mark.usefixtures("strangers")
@pytest.mark.parametrize("name", TARGETS)
def test_a_kept_input_breaks_nothing(name):
    target = load(name)
    for path in [*sorted((kept.CORPUS / name).iterdir()), *kept.crashes(name)]:
        try:
            target.run(path.read_bytes())
        except BaseException as error:
            error.add_note(f"the input is {path}")
            raise


@pytest.mark.usefixtures("strangers")
@pytest.mark.parametrize("name", TARGETS)
def test_a_changed_input_breaks_nothing(name):
    target = load(name)
    inputs = kept.inputs(name)
    mutator = Mutator(target.tokens, inputs)
    for number in range(RUNS):
        data = mutator.mutate(inputs[number % len(inputs)])
        try:
            target.run(data)
        except BaseException as error:
            error.add_note(shown(name, data))
            raise


def test_each_target_has_a_corpus_that_stays_small():
    folders = {path.name: list(path.iterdir()) for path in kept.CORPUS.iterdir()}
    assert folders.keys() == TARGETS.keys()
    assert all(0 < len(files) <= MAX_FILES for files in folders.values())
    sizes = [path.stat().st_size for files in folders.values() for path in files]
    assert sum(sizes) <= MAX_BYTES
    assert max(sizes) <= MAX_SIZE


def test_a_crash_is_kept_for_a_target_that_is_there():
    if kept.CRASHES.is_dir():
        assert {path.name for path in kept.CRASHES.iterdir() if path.is_dir()} <= TARGETS.keys()


def test_the_same_seed_gives_the_same_inputs():
    def made(seed: int) -> list[bytes]:
        mutator = Mutator((b"word", b'"name":'), [b'{"a":[1,{"b":null}]}\nx', b"other"], seed)
        return [mutator.mutate(b'{"a":{"b":[1,2,3]}}') for _ in range(200)]

    assert made(1) == made(1)
    assert made(1) != made(2)
    assert len(set(made(1))) > 150
    assert max(map(len, made(1))) <= MAX_SIZE


def test_an_input_is_cut_and_pumped_the_same_way_each_time():
    inputs = [bytes([number, 7, number // 2]) * 20 for number in range(256)]
    assert all(b"".join(cut) == data for data in inputs for cut in ways(data))
    assert [pieces(data) for data in inputs] == [pieces(data) for data in inputs]
    grown = [long for data in inputs for long in pumped(data, 1000)]
    assert 0 < len(grown) < len(inputs) / 8
    assert all(1000 <= len(long) < 1100 for long in grown)


def test_a_target_that_fails_breaks_the_short_run():
    target = load("planted")
    mutator = Mutator(target.tokens, [b"harmless"])
    made = [mutator.mutate(b"harmless") for _ in range(RUNS)]
    with pytest.raises(ZeroDivisionError, match="planted"):
        target.run(next(data for data in made if b"boom" in data))


@pytest.mark.skipif(not HAS_ATHERIS, reason="atheris has no wheel for this Python or machine")
def test_a_hunt_catches_a_crash_and_keeps_its_input(tmp_path):
    command = [sys.executable, "-m", "fuzz", "planted", "--seconds", "30", "--crashes", str(tmp_path)]
    hunt = subprocess.run(command, check=False, cwd=ROOT, capture_output=True, text=True)
    assert hunt.returncode == 1, hunt.stdout + hunt.stderr
    assert "BROKEN" in hunt.stdout
    assert "ZeroDivisionError: planted" in hunt.stdout
    [crash] = (tmp_path / "planted").iterdir()
    with pytest.raises(ZeroDivisionError):
        load("planted").run(crash.read_bytes())
