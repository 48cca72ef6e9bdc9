"""Manifests: canonical, and refused unless the tree stays in its folder."""

import tracemalloc

import pytest

from muster.bundle.manifest import (
    CHUNK_BYTES,
    FILES_MAX,
    BadManifestError,
    CodeManifest,
    File,
    TreeLink,
    decode,
    digest,
    encode,
    encoded_at_most,
    encoded_size,
)

ONE = digest(b"1")


def file(path: str) -> File:
    return File(path, 1, False, (ONE,))


def test_equal_trees_have_equal_manifests() -> None:
    one = CodeManifest((file("b"), file("a")), (TreeLink("z", "a"), TreeLink("y", "b")))
    other = CodeManifest((file("a"), file("b")), (TreeLink("y", "b"), TreeLink("z", "a")))
    assert encode(one) == encode(other)
    assert decode(encode(one)) == other
    assert other.size == 2
    assert other.chunks() == {ONE: 1}


def test_a_large_file_has_chunks() -> None:
    large = File("a", CHUNK_BYTES + 1, True, (digest(b"0"), ONE))
    assert dict(large.sizes()) == {digest(b"0"): CHUNK_BYTES, ONE: 1}
    assert decode(encode(CodeManifest((large,)))).files == (large,)


@pytest.mark.parametrize(
    "manifest",
    [
        CodeManifest((file("../a"),)),
        CodeManifest((file("/a"),)),
        CodeManifest((file("a/../b"),)),
        CodeManifest((file("a//b"),)),
        CodeManifest((file(""),)),
        CodeManifest((file("."),)),
        CodeManifest((file("a\0"),)),
        CodeManifest((file(".git/config"),)),
        CodeManifest((file("x/.git"),)),
        CodeManifest((file("a" * 256),)),
        CodeManifest((file("a/" * 2500 + "a"),)),
        CodeManifest((file("a/" * 64 + "a"),)),
        CodeManifest((file("a"), file("A"))),
        CodeManifest((file("x/a"), file("X/b"))),
        CodeManifest((file("a"), file("a/b"))),
        CodeManifest((file("a/b/c"), file("a/b"))),
        CodeManifest((file("a/b/c"), file("a/B/d"))),
        CodeManifest((file("a"), File("b", 2, False, (ONE,)))),
        CodeManifest((file("a"), file("a"))),
        CodeManifest((file("a/b"),), (TreeLink("a", "c"),)),
        CodeManifest((), (TreeLink("a", "/etc/passwd"),)),
        CodeManifest((), (TreeLink("a", "../x"),)),
        CodeManifest((), (TreeLink("d/a", "../../x"),)),
        CodeManifest((), (TreeLink("d", "e"), TreeLink("a", "d/../../x"))),
        CodeManifest((), (TreeLink("a", ""),)),
        CodeManifest((File("a", 1, False, ()),)),
        CodeManifest((File("a", 0, False, (ONE,)),)),
        CodeManifest((File("a", -1, False, ()),)),
        CodeManifest((File("a", 1, False, ("../../x",)),)),
        CodeManifest((file("a"),), version=2),
    ],
)
def test_what_leaves_the_tree_is_refused(manifest: CodeManifest) -> None:
    with pytest.raises(BadManifestError):
        decode(encode(manifest))


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"[]",
        b"{}x",
        b"[" * 10_000,
        b'{"files":"x"}',
        b'{"files":[["a",1]]}',
        b"{}",
        encode(CodeManifest((file("a"),))) + b" ",
        b'{"files":[["\xff",0,false,[]]],"links":[],"version":1}',
    ],
)
def test_other_bytes_are_refused(data: bytes) -> None:
    with pytest.raises(BadManifestError):
        decode(data)


def test_another_order_is_not_canonical() -> None:
    data = encode(CodeManifest((file("a"), file("b"))))
    with pytest.raises(BadManifestError, match="canonical"):
        decode(data.replace(b'"a"', b'"c"'))


def test_links_within_the_tree() -> None:
    tree = CodeManifest(
        (file("d/x"),), (TreeLink("d/e/a", "../../d/x"), TreeLink("b", "./d"), TreeLink("c", "no"))
    )
    assert set(decode(encode(tree)).links) == set(tree.links)


def test_the_memory_of_a_check_follows_the_size_of_the_manifest() -> None:
    """Each prefix of these paths is another folder: kept as texts, they would be 400 MB."""
    inner = "/".join(["a" * 60] * 62)
    manifest = CodeManifest(tuple(file(f"{number:05}/{inner}/f") for number in range(3000)))
    data = encode(manifest)
    tracemalloc.start()
    try:
        decode(data)
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert most < 10 * len(data)


def test_too_many_files_are_refused() -> None:
    many = CodeManifest(tuple(File(f"{number}", 0, False, ()) for number in range(FILES_MAX + 1)))
    with pytest.raises(BadManifestError, match=f"more than {FILES_MAX} files"):
        decode(encode(many))


def test_folders_count_as_files_do() -> None:
    deep = "/".join("abcdefghij" * 5)
    many = CodeManifest(tuple(file(f"{number}/{deep}/f") for number in range(8000)))
    with pytest.raises(BadManifestError, match="files and folders"):
        decode(encode(many))


def test_the_size_of_a_manifest_is_known_before_its_files_are_read() -> None:
    tree = CodeManifest(
        (
            File('a"\n\x01é', 3, False, (digest(b"x"),)),
            File("b", 2 * CHUNK_BYTES + 1, True, (digest(b"x"),) * 3),
            File("c", 0, False, ()),
        ),
        (TreeLink("d/e", "../b"),),
    )
    files = [(each.path, each.size, each.executable) for each in tree.files]
    size = len(encode(tree))
    assert encoded_size(files, tree.links) == size
    worst = CodeManifest(tuple(File("\1" * n, 1, False, (digest(b"x"),)) for n in range(1, 50)))
    for each in (tree, worst, CodeManifest()):
        texts = sum(map(len, each.paths())) + sum(len(link.target) for link in each.links)
        entries = len(each.files) + len(each.links)
        assert len(encode(each)) <= encoded_at_most(texts, entries, each.size)
