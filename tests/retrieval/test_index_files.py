"""An index on disk: damage is found, and a build that is killed or runs out of disk space leaves nothing incomplete."""

import json
import os
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path

import numpy as np
import pytest
from datasets import Dataset

from hf_tlm.errors import HfTlmError
from hf_tlm.retrieval import Bm25Settings, RetrievalError
from hf_tlm.retrieval.bm25 import files as index_files
from hf_tlm.retrieval.bm25 import tiles
from hf_tlm.retrieval.bm25.index import Index
from hf_tlm.retrieval.bm25.tokenize import tokenize_texts
from hf_tlm.retrieval.texts import Analyzer
from support import warm
from support.small_indexes import build, content, results, rows


@pytest.fixture
def path(tmp_path):
    return tmp_path / "index"


def test_loaded_index_equals_the_built_one(path):
    built = build(path)
    loaded = Index.load(path, fingerprint="f", analyzer=Analyzer())
    assert results(loaded) == results(built)
    assert (len(loaded), loaded.corpus_name, loaded.fingerprint, loaded.analyzer) == (200, "toy", "f", Analyzer())
    assert loaded.num_tokens == built.num_tokens
    assert loaded.terms()[0] == built.terms()[0]


def test_index_can_be_moved(path, tmp_path):
    expected = results(build(path))
    shutil.move(path, tmp_path / "else where")
    assert results(Index.load(tmp_path / "else where")) == expected


def test_flipped_bit_in_any_file_is_found(path):
    expected = results(build(path))
    rng = np.random.default_rng(0)
    for file in sorted(path.iterdir()):
        data = file.read_bytes()
        positions = {0, 1, 8, 64, 127, 128, len(data) // 2, len(data) - 1, *rng.integers(0, len(data), 30).tolist()}
        for position in range(len(data)) if file.suffix == ".json" else sorted(p for p in positions if p < len(data)):
            damaged = bytearray(data)
            damaged[position] ^= 1 << int(rng.integers(8))
            file.write_bytes(damaged)
            with pytest.raises(RetrievalError, match=f"(?s){path.name}.*(damaged|not an index|version)"):
                Index.load(path)
        file.write_bytes(data)
    assert results(Index.load(path)) == expected


@pytest.mark.parametrize("damage", ["missing", "empty", "shorter", "longer", "swapped", "folder"])
def test_damaged_file_is_found_and_named(path, damage):
    build(path)
    for file in sorted(path.iterdir()):
        data = file.read_bytes()
        file.unlink()
        if damage == "folder":
            file.mkdir()
        elif damage != "missing":
            new = {"empty": b"", "shorter": data[:-2], "longer": data + b"\0", "swapped": data[::-1]}[damage]
            file.write_bytes(new)
        with pytest.raises(RetrievalError) as error:
            Index.load(path)
        assert file.name in str(error.value)
        if damage == "folder":
            file.rmdir()
        file.write_bytes(data)
    Index.load(path)


def test_path_that_is_not_an_index_is_refused(path, tmp_path):
    with pytest.raises(RetrievalError, match="not an index"):
        Index.load(path)
    for text in ("", "[]", "null", "{}", '{"format": "hf_tlm.subset"}', "\x00\xff"):
        path.mkdir(exist_ok=True)
        (path / index_files.META_FILE).write_text(text, encoding="latin-1")
        with pytest.raises(RetrievalError, match="not an index"):
            Index.load(path)
    file = tmp_path / "file"
    file.write_text("x")
    with pytest.raises(RetrievalError, match="not an index"):
        Index.load(file)


def test_other_format_version_is_refused(path):
    build(path)
    file = path / index_files.META_FILE
    meta = json.loads(file.read_text(encoding="utf-8"))
    version = meta["format_version"]
    for other in (version + 1, 0, None):
        file.write_text(json.dumps({**meta, "format_version": other}), encoding="utf-8")
        with pytest.raises(RetrievalError, match=f"version {other}.*version {version}"):
            Index.load(path)
    assert Index.load(build(path).directory).meta["format_version"] == version


OTHERS = [{"fingerprint": "g"}, {"analyzer": Analyzer(None)}, {"analyzer": Analyzer("en", "english")}]


@pytest.mark.parametrize("other", OTHERS, ids=repr)
def test_index_of_another_corpus_or_analyzer_is_refused(path, other):
    before = results(build(path))
    expected = {"fingerprint": "f", "analyzer": Analyzer(), **other}
    message = (
        "another corpus, or before its files changed: toy.*f.*g"
        if "fingerprint" in other
        else "other settings.*stopwords en.*stemmer None"
    )
    with pytest.raises(RetrievalError, match=message):
        Index.load(path, **expected)
    with pytest.raises(RetrievalError, match=message):
        Index.open_or_build(path, rows(0, 10), corpus_name="other", **expected)
    assert (
        results(Index.open_or_build(path, rows(0, 200), corpus_name="toy", fingerprint="f", analyzer=Analyzer())) == before
    )


def test_open_or_build_builds_once(path, monkeypatch):
    arguments = {"corpus_name": "toy", "fingerprint": "f", "analyzer": Analyzer()}
    first = Index.open_or_build(path, rows(0, 200), **arguments)
    before = {file.name: file.stat().st_mtime_ns for file in path.iterdir()}
    monkeypatch.setattr("hf_tlm.retrieval.bm25.build.Builder", None)
    assert results(Index.open_or_build(path, rows(0, 200), **arguments)) == results(first)
    assert before == {file.name: file.stat().st_mtime_ns for file in path.iterdir()}


def test_duplicate_ids_are_refused_and_named(path):
    texts = {"id": ["a", "b", "c", "b"], "text": ["one", "two", "three", "four"]}
    with pytest.raises(RetrievalError, match="'b' occurs twice, in rows 1 and 3"):
        Index.build(path, Dataset.from_dict(texts), corpus_name="toy", fingerprint="f")
    assert not path.exists()


def test_empty_corpus_is_refused(path):
    with pytest.raises(RetrievalError, match="no passage"):
        Index.build(path, rows(0, 0), corpus_name="toy", fingerprint="f")
    assert not path.exists()


def test_folder_with_other_files_is_refused(path):
    path.mkdir()
    (path / "thesis.tex").write_text("years of work")
    for make in (Index.build, Index.open_or_build):
        with pytest.raises(RetrievalError, match="not an index"):
            make(path, rows(0, 5), corpus_name="toy", fingerprint="f")
    assert content(path) == {"thesis.tex": b"years of work"}
    (path / "thesis.tex").unlink()
    assert len(build(path)) == 200


@pytest.mark.parametrize("cuts", [(100,), (1,), (199,), (30, 60, 64, 65, 150)])
@pytest.mark.parametrize("tile,sample", [(16_384, 8_192), (16, 8)])
def test_extend_equals_a_fresh_build(path, tmp_path, cuts, tile, sample, monkeypatch):
    monkeypatch.setattr(tiles, "TILE", tile)
    monkeypatch.setattr(tiles, "SAMPLE", sample)
    fresh = build(tmp_path / "fresh")
    extended = build(path, 0, cuts[0])
    for number, (first, last) in enumerate(zip(cuts, (*cuts[1:], 200), strict=True)):
        extended = extended.extend(rows(first, last), fingerprint=f"f{number}")
    loaded = Index.load(path, fingerprint=f"f{len(cuts) - 1}", analyzer=Analyzer())
    for found in (extended, loaded):
        assert len(found) == 200 and found.num_tokens == fresh.num_tokens
        assert found.ids.to_pylist() == fresh.ids.to_pylist()
        assert found.terms()[0] == fresh.terms()[0]
        np.testing.assert_array_equal(found.terms()[1], fresh.terms()[1])
        for top_k in (1, 5, 150, 1000):
            assert results(found, top_k) == results(fresh, top_k)
    with pytest.raises(RetrievalError, match="another corpus"):
        Index.load(path, fingerprint="f")


def test_extend_with_large_counts_and_new_words(path, tmp_path):
    texts = ["aa " * 300, "bb " * 70_000 + "cc", "", "the", "aa cc", "dd " * 255, "ee new words é漢字 and longer ones"]
    ids = list("abcdefg")
    dataset = Dataset.from_dict({"id": ids, "text": texts})
    options = {"corpus_name": "toy", "fingerprint": "f", "analyzer": Analyzer()}
    fresh = Index.build(tmp_path / "fresh", dataset, **options)
    for cut in range(1, 7):
        extended = Index.build(path, dataset.select(range(cut)), **options).extend(
            dataset.select(range(cut, 7)), fingerprint="f2"
        )
        again = extended.extend(Dataset.from_dict({"id": ["h"], "text": ["aa bb"]}), fingerprint="f3")
        for settings in (Bm25Settings(), Bm25Settings(k1=1e5), Bm25Settings("okapi")):
            queries = tokenize_texts(["aa", "bb cc", "dd", "é漢字", "longer aa"], Analyzer())
            found = [(d.tolist(), s.tolist()) for d, s in extended.search(queries, 7, settings=settings)]
            assert found == [(d.tolist(), s.tolist()) for d, s in fresh.search(queries, 7, settings=settings)]
        assert len(again) == 8 and again.document_frequencies(["bb", "aa"]).tolist() == [2, 3]


@pytest.mark.timeout(60)
def test_extend_an_index_without_words(path):
    options = {"corpus_name": "toy", "fingerprint": "f", "analyzer": Analyzer()}
    empty = Index.build(path, Dataset.from_dict({"id": ["a", "b"], "text": ["the", ""]}), **options)
    extended = empty.extend(rows(0, 50), fingerprint="f2")
    assert len(extended) == 52 and extended.document_frequencies(["alpha"]).tolist() == [50]
    ((documents, _),) = extended.search(tokenize_texts(["needle"], Analyzer()), 5)
    assert documents.tolist() == [9]


def test_extending_by_an_existing_id_changes_nothing(path):
    built = build(path)
    before = content(path)
    for wrong in (rows(150, 160), rows(0, 0).add_item({"id": "p37", "text": "x"})):
        with pytest.raises(RetrievalError, match="occurs twice"):
            built.extend(wrong, fingerprint="g")
    assert content(path) == before


def test_open_index_still_works_after_it_was_extended_or_replaced(path):
    opened = build(path)
    expected = results(opened)
    build(path, 0, 100).extend(rows(300, 900), fingerprint="g")
    assert results(opened) == expected


def test_two_extensions_of_the_same_index_lose_no_passages(path, tmp_path):
    first = build(path, 0, 100)
    second = Index.load(path)
    first.extend(rows(100, 150), fingerprint="g")
    # The second opened the index before the first extended it: it extends the current index, or refuses to.
    last = 200
    try:
        second.extend(rows(150, 200), fingerprint="h")
    except RetrievalError:
        last = 150
    found = Index.load(path)
    assert len(found) == last and results(found) == results(build(tmp_path / "fresh", 0, last))


def test_meta_file_counts_passages_terms_and_postings(path):
    built = build(path)
    meta = json.loads((path / index_files.META_FILE).read_text(encoding="utf-8"))
    assert meta["passages"] == 200 and meta["terms"] == len(built.terms()[0])
    assert meta["postings"] == built.terms()[1].sum()


# The following tests run in a separate process, which forks a child per attempt: each child is killed, interrupted, or
# refused by the disk at one point, and the parent checks what is left.
DRIVER = """
import errno, os, resource, shutil, signal, sys, threading
from pathlib import Path

from tqdm.auto import tqdm

sys.path.insert(0, {tests!r})
from hf_tlm.utils.files import HfTlmError
from hf_tlm.retrieval import RetrievalError
from hf_tlm.retrieval.texts import Analyzer
from hf_tlm.retrieval.bm25.index import Index
from support import warm
from support.small_indexes import build, content, results, rows

# A shell that runs the tests in the background has its children ignore Ctrl-C.
signal.signal(signal.SIGINT, signal.default_int_handler)
root = Path(sys.argv[1])
path = root / "index"
WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT
CHANGES = ("os.rename", "os.mkdir", "os.remove", "os.rmdir", "os.truncate", "os.link", "os.chmod")

# The kernels and pools are ready before the first fork.
old = results(build(root / "old" / "index", 0, 100))
new = results(build(root / "new" / "index", 0, 100).extend(rows(100, 200), fingerprint="g"))
shutil.rmtree(root / "new")

seen = 0
def at_change(number, act, on=CHANGES):
    '''Do something at the number-th change below root and at all that follow.'''
    def hook(event, arguments):
        global seen
        if event == "open":
            changes = isinstance(arguments[2], int) and arguments[2] & WRITING
        else:
            changes = event in on
        if changes and any(isinstance(a, (str, os.PathLike)) and str(root) in str(a) for a in arguments):
            seen += 1
            if seen > number:
                act()
    sys.addaudithook(hook)

def count_changes(mode):
    def count():
        at_change(0, lambda: None)
        change(mode)
        os._exit(seen)
    start(mode)
    return fork(count)

def fork(work):
    '''Exit code of a child that does the work, negative if a signal ended it; 3: interrupted, 4: our error, 5: another.'''
    sys.stdout.flush()
    pid = os.fork()
    if pid == 0:
        code = 5
        # tqdm's is a semaphore that forks share: a child killed while it holds it would stop all that come after.
        tqdm.set_lock(threading.RLock())
        try:
            work()
            code = 0
        except KeyboardInterrupt:
            code = 3
        except HfTlmError as error:
            code = 4 if "no such device" not in str(error).lower() else 5
            # What is said goes to a file too.
            resource.setrlimit(resource.RLIMIT_FSIZE, 2 * resource.getrlimit(resource.RLIMIT_FSIZE)[1:])
            print("said:", error, flush=True)
        except BaseException as error:
            print("raised:", repr(error), flush=True)
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])

def start(mode):
    shutil.rmtree(path, ignore_errors=True)
    if mode == "extend":
        shutil.copytree(root / "old" / "index", path)

def change(mode):
    if mode == "extend":
        Index.load(path).extend(rows(100, 200), fingerprint="g")
    else:
        build(path, 0, 100)

def look(mode, code, n):
    '''What is there is whole: nothing or all of a build, the old or the new state of an extension.'''
    where = f"{{mode}} {{n}}: exit {{code}}"
    if mode == "extend":
        assert path.exists(), where + ": the index is gone"
        found = Index.load(path)
        assert results(found) == (old if len(found) == 100 else new), where
        assert code != 0 or len(found) == 200, where
    elif path.exists():
        assert results(Index.load(path)) == old, where
    else:
        assert code != 0, where

def rest():
    '''What lies about; a folder that was interrupted at its very making, and so is empty, may.'''
    known = ("old", "index", ".index.lock")
    return sorted(p.name for p in root.iterdir() if p.name not in known and not (p.is_dir() and not any(p.iterdir())))

def again(mode):
    '''The next one succeeds.'''
    if mode == "extend" and len(Index.load(path)) == 200:
        return
    assert fork(lambda: change(mode)) == 0
    assert results(Index.load(path)) == (new if mode == "extend" else old)
"""
FORKS = pytest.mark.skipif(not hasattr(os, "fork") or sys.platform != "linux", reason="needs fork")


def drive(tmp_path, program, *prefix):
    """Run a program and return what it prints; prefix: a command that starts Python, if a warm process will not do."""
    driver = DRIVER.format(tests=str(Path(__file__).parents[1])) + textwrap.dedent(program)
    if not prefix:
        ended = warm.program(driver, [tmp_path], limit=200)
        assert ended.status == 0, ended.stdout[-3000:] + ended.stderr[-3000:]
        return ended.stdout
    command = [*prefix, sys.executable, "-c", driver, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return done.stdout


@pytest.mark.slow
@FORKS
@pytest.mark.parametrize("mode", ["build", "extend"])
@pytest.mark.parametrize("signal", ["SIGKILL", "SIGINT"])
def test_kill_or_ctrl_c_at_any_operation_leaves_nothing_incomplete(tmp_path, mode, signal):
    drive(
        tmp_path,
        f"""
        mode, name = {mode!r}, {signal!r}
        def interrupted(n):
            at_change(n, lambda: os.kill(os.getpid(), getattr(signal, name)))
            change(mode)
        number = count_changes(mode)
        assert 10 < number < 100, number
        for n in range(number):
            start(mode)
            code = fork(lambda: interrupted(n))
            assert code == (-signal.SIGKILL if name == "SIGKILL" else 3), (n, code)
            look(mode, code, n)
            if name == "SIGINT":
                assert not rest(), (n, rest())
            if n % 4 == 0:
                again(mode)
        """,
    )


@pytest.mark.slow
@FORKS
@pytest.mark.parametrize("mode", ["build", "extend"])
def test_kill_at_any_time_leaves_nothing_incomplete(tmp_path, mode):
    # Also between the operations of the test above, for example within a write.
    drive(
        tmp_path,
        f"""
        import time
        mode = {mode!r}
        start(mode)
        begin = time.perf_counter()
        change(mode)
        whole = time.perf_counter() - begin
        def killed(delay):
            signal.signal(signal.SIGALRM, signal.SIG_DFL)
            signal.setitimer(signal.ITIMER_REAL, delay)
            change(mode)
        for n in range(1, 25):
            start(mode)
            look(mode, fork(lambda: killed(whole * n / 20)), n)
        again(mode)
        """,
    )


@pytest.mark.slow
@FORKS
@pytest.mark.parametrize("mode", ["build", "extend"])
def test_full_disk_is_reported_and_the_previous_state_kept(tmp_path, mode):
    out = drive(
        tmp_path,
        f"""
        mode = {mode!r}
        def full(n):
            def refuse():
                raise OSError(errno.ENOSPC, "No space left on device")
            at_change(n, refuse, on=("os.mkdir", "os.link"))
            change(mode)
        codes = []
        for n in range(count_changes(mode)):
            start(mode)
            codes.append(fork(lambda: full(n)))
            assert codes[-1] in (0, 4), (n, codes)
            look(mode, codes[-1], n)
        assert codes.count(4) > 10, codes
        # A limit on a file's size makes writes themselves fail, somewhere inside a file.
        def limited(size):
            resource.setrlimit(resource.RLIMIT_FSIZE, (size, resource.getrlimit(resource.RLIMIT_FSIZE)[1]))
            change(mode)
        largest = max(f.stat().st_size for f in path.iterdir())
        for size in (1, 100, 1000, 3000, largest // 2, largest - 1):
            start(mode)
            code = fork(lambda: limited(size))
            assert code == 4, (size, code)
            look(mode, code, size)
            assert not rest(), rest()
        again(mode)
        """,
    )
    assert "is full" in out and "file size limit" in out
    assert all(str(tmp_path) in line for line in out.splitlines() if line.startswith("said:"))


def can_mount():
    probe = "mount -t tmpfs -o size=1m tmpfs /mnt"
    return (
        shutil.which("unshare") and not subprocess.run(["unshare", "-rm", "sh", "-c", probe], capture_output=True).returncode
    )


@pytest.mark.slow
@FORKS
@pytest.mark.parametrize("mode", ["build", "extend"])
def test_small_mounted_disk_that_is_full(tmp_path, mode):
    if not can_mount():
        pytest.skip("this system lets us mount no disk of our own")
    small = tmp_path / "small"
    small.mkdir()
    drive(
        tmp_path,
        f"""
        import subprocess
        mode = {mode!r}
        mounted = root = root / "small"
        subprocess.run(["mount", "-t", "tmpfs", "-o", "size=10m", "tmpfs", str(root)], check=True)
        shutil.copytree(path.parent / "old", root / "old")
        path = root / "index"
        codes = []
        for kilobytes in range(0, 400, 12):
            start(mode)
            used = os.statvfs(root)
            used = (used.f_blocks - used.f_bfree) * used.f_frsize // 1024
            subprocess.run(["mount", "-o", f"remount,size={{used + kilobytes + 4}}k", str(root)], check=True)
            code = fork(lambda: change(mode))
            assert code in (0, 4), (kilobytes, code)
            look(mode, code, kilobytes)
            codes.append(code)
            subprocess.run(["mount", "-o", "remount,size=10m", str(root)], check=True)
            assert not rest(), rest()
        assert codes[0] == 4 and codes[-1] == 0, codes
        """,
        "unshare",
        "-rm",
    )


@FORKS
def test_read_only_index_can_be_searched(tmp_path):
    drive(
        tmp_path,
        """
        start("extend")
        (root / ".index.lock").unlink(missing_ok=True)
        def read_only():
            def refuse():
                raise OSError(errno.EROFS, "Read-only file system")
            at_change(0, refuse)
            assert results(Index.load(path, fingerprint="f", analyzer=Analyzer())) == old
            opened = Index.open_or_build(path, rows(0, 100), corpus_name="toy", fingerprint="f", analyzer=Analyzer())
            assert results(opened) == old
        before = content(path)
        for file in path.iterdir():
            file.chmod(0o444)
        path.chmod(0o555)
        code = fork(read_only)
        path.chmod(0o755)
        assert code == 0, code
        assert content(path) == before
        """,
    )


@pytest.mark.slow
@FORKS
def test_concurrent_builders_end_with_the_same_index(tmp_path):
    drive(
        tmp_path,
        """
        def wait(pids):
            return [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in pids]

        def together(work, number):
            pids = []
            for n in range(number):
                pid = os.fork()
                if pid == 0:
                    try:
                        work(n)
                        os._exit(0)
                    except BaseException as error:
                        print("raised:", repr(error), flush=True)
                        os._exit(1)
                pids.append(pid)
            return wait(pids)

        def opens(n):
            arguments = {"corpus_name": "toy", "fingerprint": "f", "analyzer": Analyzer(), "num_threads": 1}
            index = Index.open_or_build(path, rows(0, 100), **arguments)
            assert results(index) == old

        def builds(n):
            assert results(build(path, 0, 100)) == old

        for attempt in range(4):
            for work in (opens, builds):
                start("build")
                assert together(work, 4) == [0] * 4
                assert results(Index.load(path)) == old
                assert not rest(), rest()

        # One that dies while it holds the lock does not keep the others waiting.
        start("build")
        def dies(n):
            if n == 0:
                at_change(5, lambda: os.kill(os.getpid(), signal.SIGKILL))
            opens(n)
        assert sorted(together(dies, 3))[1:] == [0, 0]
        assert results(Index.load(path)) == old

        # Two corpora under one name: one of them is told so, and the other has its index.
        start("build")
        def other(n):
            Index.open_or_build(path, rows(0, 100), corpus_name=f"toy{n}", fingerprint=f"f{n}")
        assert sorted(together(other, 2)) == [0, 1]
        assert results(Index.load(path)) == old
        """,
    )


@pytest.mark.slow
@FORKS
def test_index_can_be_loaded_while_another_process_replaces_it(tmp_path):
    drive(
        tmp_path,
        """
        start("extend")
        pid = os.fork()
        if pid == 0:
            for n in range(150):
                build(path, 0, 100 + n % 2, num_threads=1)
            os._exit(0)
        states = {100: old}
        loads = 0
        while os.waitpid(pid, os.WNOHANG) == (0, 0):
            found = Index.load(path)
            assert results(found) == states.setdefault(len(found), results(found))
            assert len(found.lengths) == len(found.ids) == len(found)
            loads += 1
        assert set(states) == {100, 101} and loads > 20, (loads, list(states))
        """,
    )


def test_loaded_index_never_mixes_two_versions(path, monkeypatch):
    """Not even if the index is replaced, and restored byte for byte, before loading has ended."""
    expected, make = results(build(path, 0, 100)), Index.__init__
    turns = iter([True])

    def replaced_in_between(self, *arguments):
        again = next(turns, False)
        if again:
            monkeypatch.setattr(Index, "__init__", make)
            build(path, 0, 101)
        make(self, *arguments)
        if again:
            build(path, 0, 100)
            monkeypatch.setattr(Index, "__init__", replaced_in_between)

    monkeypatch.setattr(Index, "__init__", replaced_in_between)
    loaded = Index.load(path)
    assert len(loaded.lengths) == 100 and results(loaded) == expected


def test_unwritable_path_is_named(tmp_path):
    (tmp_path / "file").write_text("x")
    with pytest.raises(HfTlmError, match="file"):
        build(tmp_path / "file" / "index")


@pytest.mark.parametrize("place", ["tokenize_words", "make_tile", "keep_terms"])
def test_error_in_a_thread_is_raised_and_leaves_no_files(path, tmp_path, place, monkeypatch):
    def fail(*args):
        raise ArithmeticError("a bug")

    monkeypatch.setattr(tiles, "TILE", 16)
    with monkeypatch.context() as patch:
        patch.setattr(f"hf_tlm.retrieval.bm25.build.{place}", fail)
        with pytest.raises(ArithmeticError, match="a bug"):
            build(path)
    assert [file.name for file in tmp_path.iterdir() if not file.name.endswith(".lock")] == []
    assert len(build(path)) == 200
