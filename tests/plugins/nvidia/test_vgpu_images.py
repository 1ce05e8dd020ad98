"""The size of a module's variables, read in the image before the driver loads it: `native/vgpu/image.c`."""

import ctypes
import shutil
import struct
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from tests.plugins.nvidia.test_vgpu_limiter import SOURCE

GIB = 2**30
PTX, CUBIN = 1, 2
LZ4, ZSTD = 0x2000, 0x8000
Sized = Callable[[bytes], int]


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        pytest.skip("needs a C compiler")
    path = tmp_path_factory.mktemp("image") / "image.so"
    warnings = ["-Wall", "-Wextra", "-Werror", "-fsanitize=undefined", "-fno-sanitize-recover"]
    command = [compiler, "-shared", "-fPIC", "-O1", *warnings, "-o", str(path), str(SOURCE / "image.c")]
    subprocess.run(command, check=True)
    loaded = ctypes.CDLL(str(path))
    loaded.image_variables.restype = loaded.image_file_variables.restype = ctypes.c_uint64
    return loaded


@pytest.fixture
def sized(library: ctypes.CDLL) -> Sized:
    return lambda image: int(library.image_variables(ctypes.create_string_buffer(image)))


@pytest.mark.parametrize(
    ("text", "size"),
    [
        (".visible .global .align 4 .b8 a[1024];", 1024),
        (".visible .global .align 4 .f32 a[10][3];", 120),
        (".visible .global .align 16 .v4 .f32 a[2] = {{1, 2, 3, 4}, {5, 6, 7, 8}};", 32),
        (".visible .global .u64 a;\n.visible .global .b16 b[3] = {1, 2, 3};", 14),
        (".visible .global .align 1 .b8 a[4294967296];\n.visible .global .b8 b[1];", 2**32 + 1),
        ("// .visible .global .b8 a[9];\n/* .visible .global .b8 b[9]; */ .visible .global .b8 c[5];", 5),
        (".global .b8 a[100];", 0),  # nothing outside sees it: it may be left out
        (".extern .global .b8 a[100];", 0),
        (".visible .const .b8 a[100];\n.visible .shared .b8 b[100];", 0),
        (
            ".visible .entry k(.param .u64 a)\n{ .local .b8 depot[64]; ld.global.u8 %r1, [%d1]; ret; }",
            0,
        ),
        (".visible .func (.param .b32 r) f(.param .b64 a) { st.global.f32 [a], 0; }\n.visible .global .b8 c[3];", 3),
        (".visible .global .b8 a[99999999999999999999999];", 0),
        (".visible .global .b64 a[18446744073709551615][18446744073709551615];", 2**64 - 1),
        (".visible .global .b8 a[", 0),
        ("/* without an end", 0),
    ],
)
def test_ptx_has_the_variables_that_other_modules_can_see(sized: Sized, text: str, size: int) -> None:
    assert sized(f".version 8.0\n.target sm_70\n.address_size 64\n{text}\n".encode()) == size


def elf(symbols: Sequence[int] = (), **sections: int) -> bytes:
    """A cubin without content: names with `_` for `.`, and sizes; those of the variables in its first section."""
    names = ["", *(name.replace("_", ".") for name in sections), ".symtab", ".shstrtab"]
    table = b"\0".join(name.encode() for name in names) + b"\0"
    at = {name: table.index(name.encode() + b"\0") for name in names[1:]}
    headers = [bytes(64)]
    for name, size in zip(names[1:-2], sections.values(), strict=True):
        headers.append(struct.pack("<IIQQQQIIQQ", at[name], 8, 0, 0, 0, size, 0, 0, 1, 0))
    content = b"".join(struct.pack("<IBBHQQ", 0, 1, 0, 1, 0, size) for size in symbols)
    headers.append(struct.pack("<IIQQQQIIQQ", at[".symtab"], 2, 0, 0, 64 + len(table), len(content), 0, 0, 1, 24))
    headers.append(struct.pack("<IIQQQQIIQQ", at[".shstrtab"], 3, 0, 0, 64, len(table), 0, 0, 1, 0))
    start = 64 + len(table) + len(content)
    padding = -start % 8
    ident = b"\x7fELF\x02\x01\x01" + bytes(9)
    header = struct.pack(
        "<HHIQQQIHHHHHH", 2, 190, 1, 0, 0, start + padding, 0, 64, 0, 0, 64, len(headers), len(headers) - 1
    )
    return ident + header + table + content + bytes(padding) + b"".join(headers)


def fat(*parts: tuple[int, bytes, int]) -> bytes:
    """A fat binary of parts: kind, content, flags."""
    body = b""
    for kind, content, flags in parts:
        padded = content + bytes(-len(content) % 8)
        facts = (kind, 0x101, 64, len(padded), 0, 0, 0, 9, 90, 0, 0, flags, 0, 0)
        body += struct.pack("<HHIQIIHHIIIQQQ", *facts) + padded
    return struct.pack("<IHHQ", 0xBA55ED50, 1, 16, len(body)) + body


def ptx(size: int) -> bytes:
    return f".version 8.0\n.visible .global .b8 a[{size}];\n\0".encode()


def test_a_cubin_has_them_in_two_sections(sized: Sized) -> None:
    assert sized(elf(_nv_global=6 * GIB, _nv_global_init=100, _text_kernel=5, _nv_constant3=70)) == 6 * GIB + 100
    assert sized(elf(_text_kernel=5)) == 0
    assert sized(elf(_nv_global=2**64 - 1, _nv_global_init=1)) == 2**64 - 1


@pytest.mark.parametrize(
    ("parts", "size"),
    [
        ([(CUBIN, elf(_nv_global=GIB), 0)], GIB),
        ([(CUBIN, elf(_nv_global=GIB), 0), (CUBIN, elf(_nv_global=2 * GIB), 0)], GIB),
        ([(PTX, ptx(500), 0)], 500),
        ([(CUBIN, elf(_nv_global=GIB), 0), (PTX, ptx(500), 0)], GIB),
        ([(CUBIN, b"compressed", LZ4), (CUBIN, elf(_nv_global=GIB), 0)], GIB),  # they are of one source
        ([(CUBIN, b"compressed", LZ4), (PTX, ptx(500), 0)], 500),
        ([(CUBIN, b"compressed", ZSTD)], 0),
        ([(64, b"something new", 0), (CUBIN, elf(_nv_global=GIB), 0)], GIB),
        ([], 0),
    ],
)
def test_of_a_fat_binary_the_smallest_part_counts(
    library: ctypes.CDLL, sized: Sized, parts: list[tuple[int, bytes, int]], size: int
) -> None:
    image = fat(*parts)
    assert sized(image) == size
    content = ctypes.create_string_buffer(image)
    wrapper = struct.pack("<IIQQ", 0x466243B1, 1, ctypes.addressof(content), 0)
    assert library.image_variables(ctypes.create_string_buffer(wrapper)) == size


def test_the_symbols_of_a_section_count_if_its_size_is_cut_to_32_bits(sized: Sized) -> None:
    """As nvcc 13 writes three arrays of 2 GiB."""
    assert sized(elf((2 * GIB, 2 * GIB, 2 * GIB), _nv_global=2 * GIB)) == 6 * GIB
    assert sized(elf((100,), _nv_global=GIB)) == GIB


def test_a_linked_program_has_what_its_binaries_have_together(library: ctypes.CDLL) -> None:
    def linked(own: bytes, *binaries: bytes) -> int:
        contents = [ctypes.create_string_buffer(image) for image in (own, *binaries)]
        array = (ctypes.c_uint64 * (len(binaries) + 1))(*map(ctypes.addressof, contents[1:]), 0)
        wrapper = struct.pack("<IIQQ", 0x466243B1, 2, ctypes.addressof(contents[0]), ctypes.addressof(array))
        return int(library.image_variables(ctypes.create_string_buffer(wrapper)))

    parts = fat((CUBIN, elf(_nv_global=GIB), 0)), fat((CUBIN, elf(_nv_global=2 * GIB), 0))
    assert linked(fat((CUBIN, elf(_text_kernel=5), 0)), *parts) == 3 * GIB
    assert linked(fat((CUBIN, elf(_nv_global=3 * GIB), 0)), *parts) == 3 * GIB
    assert linked(parts[0]) == GIB


@pytest.mark.parametrize("cut", [0, 4, 63, 64, 70, 100, 200, 250])
def test_a_cubin_that_is_cut_off_has_no_known_size(sized: Sized, cut: int) -> None:
    assert sized(fat((CUBIN, elf(_nv_global=GIB)[:cut], 0))) == 0


@pytest.mark.parametrize(
    "image", [b"", b"x", b"BC\xc0\xde bitcode", b"\x7fELF\x01" + bytes(80), fat((CUBIN, b"no", 0))[:-40]]
)
def test_an_unknown_image_has_no_known_size(sized: Sized, image: bytes) -> None:
    assert sized(image) == 0


def test_a_file_is_read_like_an_image_in_memory(library: ctypes.CDLL, tmp_path: Path) -> None:
    def sized_file(content: bytes) -> int:
        (tmp_path / "image").write_bytes(content)
        return int(library.image_file_variables(str(tmp_path / "image").encode()))

    assert sized_file(elf(_nv_global=GIB)) == GIB
    text = ptx(700).rstrip(b"\0").ljust(4096)
    assert sized_file(text) == 700  # a whole page, without a zero behind it
    assert sized_file(b"") == 0
    assert library.image_file_variables(b"/nonexistent") == 0
    assert library.image_file_variables(None) == 0
