"""documents/: conversion of each file type, and rejection of malicious files without affecting others."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import socket
import subprocess
import sys
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from documents.converter import Converter, Limits
from documents.kinds import find_kind
from documents.messages import Outcome
from documents.options import Options
from tests.documents import samples
from tests.documents.samples import pdf, relations, word_parts, zipped
from tests.waiting import wait_until

Convert = Callable[..., Outcome]
PLAIN = Options()
SMALL = Limits(timeout_s=1, memory_bytes=96 << 20, max_text_bytes=100_000)


@pytest.fixture(scope="module")
def convert() -> Iterator[Convert]:
    """Convert with one of two converters shared by the module: default limits or small limits."""
    with asyncio.Runner() as runner:
        usual = Converter()
        small = Converter(SMALL)

        def run(name: str, data: bytes, options: Options = PLAIN, *, is_small: bool = False) -> Outcome:
            kind = find_kind(name, "")
            assert kind is not None
            return runner.run((small if is_small else usual).convert(name, kind, data, options))

        yield run
        runner.run(usual.close())
        runner.run(small.close())


FILES = {
    "page.html": (samples.PAGE, "# Bread & butter\n\nA **good** [read](/more), not this.\n\n- one\n- two\n\n| k | v |"),
    "report.docx": (zipped(word_parts()), "# Report\n\nSome **bold** text.\n\n| a | b |\n| --- | --- |\n| 1 | 2 |"),
    "prices.xlsx": (zipped(samples.sheet_parts()), "## Prices\n\n| name | a\\|b |\n| --- | --- |\n| 3 | 2.5 |"),
    "talk.pptx": (zipped(samples.slide_parts()),
                  "## Slide 1: Plans\n\n- First\n- Second\n\n### Notes\n\nSay it\n\n"
                  "## Slide 2\n\n| x |\n| --- |\n| y |"),
    "notes.odt": (zipped(samples.open_text_parts()),
                  "## Notes\n\nOne two [link](https://a.example/x)\n\n- first\n\n| c |\n| --- |\n| d |"),
    "table.ods": (zipped(samples.open_sheet_parts()), "## Sheet A\n\n| head |\n| --- |\n| tail |"),
    "list.csv": ("name;size\n\"Ä; B\";2\n".encode("cp1252"), "| name | size |\n| --- | --- |\n| Ä; B | 2 |"),
    "data.xml": (b"<a><b>1</b></a>", "```xml\n<a><b>1</b></a>\n```"),
    "paper.pdf": (pdf("Hello there", "Page two"),
                  "# paper.pdf\n\n## Metadata\n\n- PDFFormatVersion=1.4\n- Title=A test\n- Producer=by hand\n\n"
                  "## Contents\n\n### Page 1\n\nHello there\n\n### Page 2\n\nPage two"),
}  # fmt: skip


@pytest.mark.parametrize("name", FILES)
def test_each_file_type_is_converted_to_markdown(convert: Convert, name: str):
    data, markdown = FILES[name]
    found = convert(name, data)
    assert found.refusal == ""
    assert markdown in found.text
    assert 0 < found.num_tokens <= len(found.text)


@pytest.mark.parametrize("name", FILES)
def test_text_output_has_no_markdown_syntax(convert: Convert, name: str):
    text = convert(name, FILES[name][0], Options(output_format="text")).text
    assert text
    assert not re.search(r"\*\*|^#|^```|\| ---|\]\(", text, re.MULTILINE)


def test_options_select_elements_and_resolve_links(convert: Convert):
    picked = convert("p.html", samples.PAGE, Options(css_selector="main h1, main p", hostname="a.example:8080"))
    assert picked.text == "# Bread & butter\n\nA **good** [read](https://a.example:8080/more), not this."
    assert "Menu" in convert("p.html", samples.PAGE).text
    assert "matches '/html/cssSelector'" in convert("p.html", samples.PAGE, Options(css_selector=".no")).refusal
    assert "a valid CSS selector" in convert("p.html", samples.PAGE, Options(css_selector="p[")).refusal
    plain = convert("p.pdf", pdf("x"), Options(has_pdf_metadata=False)).text
    assert plain == "# p.pdf\n\n## Contents\n\n### Page 1\n\nx"


def test_footnotes_of_open_documents_stay_in_their_paragraph(convert: Convert):
    note = "<text:note-citation>1</text:note-citation><text:note-body><text:p>two</text:p></text:note-body>"
    body = f'<text:h text:outline-level="9">Deep</text:h><text:p>One<text:note>{note}</text:note> three</text:p>'
    assert convert("a.odt", zipped(samples.open_parts("text", body))).text == "###### Deep\n\nOne two three"


def _bomb() -> bytes:
    return zipped(word_parts() | {"word/media/image1.bin": bytes(60 << 20)})


def _archive_with_false_size() -> bytes:
    """Return an archive whose directory lists a 40 MB part as 10 bytes."""
    large, data = bytes(40 << 20), bytearray(zipped(word_parts() | {"word/x.xml": bytes(40 << 20)}))
    size, checksum = len(large).to_bytes(4, "little"), zlib.crc32(large).to_bytes(4, "little")
    assert data.count(size) == 2
    assert checksum in data
    return bytes(data.replace(size, (10).to_bytes(4, "little")))


def _with_entities() -> bytes:
    parts = word_parts()
    declared = '<!DOCTYPE w [<!ENTITY x SYSTEM "file:///etc/passwd">]><w:document'
    return zipped(parts | {"word/document.xml": str(parts["word/document.xml"]).replace("<w:document", declared)})


def _billion_laughs() -> str:
    lines = "".join(f'<!ENTITY l{i} "{f"&l{i - 1};" * 10}">' for i in range(1, 20))
    return f'<!DOCTYPE a [<!ENTITY l0 "ha">{lines}]><a>&l19;</a>'


def _with_external_image() -> bytes:
    link = relations(("rId9", "image", "http://127.0.0.1:9/x.png"), mode=' TargetMode="External"')
    return zipped(word_parts() | {"word/_rels/document.xml.rels": link})


def _archive_with_duplicate_part() -> bytes:
    return zipped(word_parts() | {"word/document.xmm": "x"}).replace(b"document.xmm", b"document.xml")


HOSTILE = {
    "bomb.docx": (_bomb(), "expands beyond the limit"),
    "false-size.docx": (_archive_with_false_size(), "damaged or its content"),
    "entities.docx": (_with_entities(), "declares XML entities"),
    "laughs.xml": (_billion_laughs().encode(), "declares XML entities"),
    "outside.xml": (b'<!DOCTYPE a [<!ENTITY x SYSTEM "http://127.0.0.1:9/">]><a>&x;</a>', "declares XML entities"),
    "utf16.xml": (_billion_laughs().encode("utf-16"), "declares XML entities"),
    "broken.xml": (b"<a><b></a>", "XML that is not well-formed"),
    "picture.docx": (_with_external_image(), "an external part"),
    "twice.docx": (_archive_with_duplicate_part(), "two parts with the same name"),
    "deep.html": (b"<div>" * 60_000 + b"x", "nested too deeply"),
    "locked.pdf": (pdf("x", trailer="/Encrypt << /Filter /Standard /V 2 /R 3 /Length 128 /P -4 /O <" + "0" * 64
                       + "> /U <" + "1" * 64 + "> >> /ID [<00><00>]"), "encrypted"),
    "locked.docx": (b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1" + bytes(600), "encrypted or has an older format"),
    "zip.pdf": (zipped(word_parts()), "not a PDF"),
    "sheet.docx": (zipped(samples.sheet_parts()), "not a Word document"),
    "report.xlsx": (zipped(word_parts()), "not a spreadsheet"),
    "report.pptx": (zipped(word_parts()), "not a PowerPoint presentation"),
    "report.odt": (zipped(word_parts()), "not an OpenDocument text file"),
    "cut.xlsx": (zipped(samples.sheet_parts())[:-40], "damaged or its content"),
    "cut.pdf": (b"%PDF-1.7\n" + bytes(100), "damaged"),
    "program.html": (b"\x7fELF" + bytes(100), "not text"),
    "words.html": (b"no markup here", "not HTML"),
    "empty.pdf": (pdf(""), "pages that are images"),
}  # fmt: skip


@pytest.mark.parametrize("name", HOSTILE)
def test_malicious_file_is_rejected_with_a_reason(convert: Convert, name: str):
    data, message = HOSTILE[name]
    found = convert(name, data)
    assert message in found.refusal
    assert found.text == ""
    assert convert("after.csv", b"a,b\n").refusal == ""


def test_time_memory_and_text_size_are_limited(convert: Convert):
    slow = convert("slow.html", b"<table><tr><td>" * 40_000 + b"<p>x" * 200_000, is_small=True)
    assert slow.refusal in (
        "conversion took longer than 1 s",
        "conversion needs more than 96 MiB of memory",  # on a slow machine, the memory limit can be reached first
    )
    rows = '<row r="1"><c r="A1"><v>1</v></c></row><row r="1048576"><c r="XFD1048576"><v>1</v></c></row>'
    assert "spans more than 5000000 cells" in convert("far.xlsx", zipped(samples.sheet_parts(rows))).refusal
    rows = rows.replace('r="XFD1048576"', "")  # the reader aborts without telling the reason
    far = rows.replace("<c ><v>1</v></c>", "<c><v>1</v></c>" * 16_000)
    assert "memory" in convert("far.xlsx", zipped(samples.sheet_parts(far))).refusal
    deep, selector = b"<p>" * 1000 + b"x", "main " + "p " * 8
    slow = convert("deep.html", deep, Options(css_selector=selector))
    assert slow.refusal == "'/html/cssSelector' takes longer than 2 s"
    many = convert("many.csv", b"word,word\n" * 20_000, is_small=True)
    assert many.refusal == "the file has more than 100000 bytes of text"
    assert convert("after.csv", b"a,b\n", is_small=True).text


def test_external_resources_are_not_fetched(convert: Convert):
    with socket.create_server(("127.0.0.1", 0)) as canary:
        address = f"http://127.0.0.1:{canary.getsockname()[1]}/x"
        page = f"<img src={address}><link href={address}><iframe src={address}></iframe><script src={address}></script>"
        assert "](http" in convert("p.html", page.encode(), Options(hostname="127.0.0.1")).text
        convert("p.docx", _with_external_image().replace(b"http://127.0.0.1:9/x.png", address.encode()))
        canary.setblocking(False)
        with pytest.raises(BlockingIOError):
            canary.accept()


async def test_cancelled_conversion_stops_the_child_process():
    converter, other_workers = Converter(Limits(timeout_s=60)), workers()
    try:
        kind = find_kind("x.html", "")
        assert kind is not None
        assert not (await converter.convert("x.html", kind, b"<p>x", Options())).refusal
        (worker,) = workers() - other_workers
        work = asyncio.create_task(converter.convert("x.html", kind, b"<table><tr><td>" * 400_000, Options()))
        await wait_until(lambda: len(children(worker)) == 1)
        work.cancel()
        await asyncio.wait([work])
        await wait_until(lambda: not children(worker))
        assert not (await converter.convert("x.html", kind, b"<p>x", Options())).refusal
    finally:
        await converter.close()


async def test_exited_worker_is_restarted():
    converter, other_workers = Converter(), workers()
    try:
        kind = find_kind("x.csv", "")
        assert kind is not None
        assert (await converter.convert("x.csv", kind, b"a\n", Options())).text
        (worker,) = workers() - other_workers
        os.kill(worker, signal.SIGKILL)
        await wait_until(lambda: worker not in children(os.getpid()))
        assert (await converter.convert("x.csv", kind, b"a\n", Options())).text
    finally:
        await converter.close()


SANDBOXED_PROGRAM = """
import os, socket, subprocess, sys
from documents import sandbox
from pathlib import Path
file = open("/etc/hostname", "rb")
is_filtered = sandbox.enter(64 << 20, 5)
def refused(action):
    try:
        action()
    except OSError as error:
        return True
    return False
tries = [lambda: open("/etc/passwd"), lambda: socket.socket(), lambda: os.listdir("/"), lambda: os.open("/tmp/x", 65)]
if is_filtered:
    tries += [os.fork, lambda: os.kill(os.getppid(), 0), lambda: os.execv("/bin/true", ["true"]),
              lambda: os.unlink("/tmp/no"), lambda: os.stat("/"), socket.socketpair]
assert all(refused(each) for each in tries), [refused(each) for each in tries]
try:
    bytearray(1 << 30)
    sys.exit(9)
except MemoryError:
    pass
sys.stdout.write("sandboxed" if is_filtered else "limited")
"""


def test_sandboxed_process_cannot_open_files_or_start_processes():
    done = subprocess.run([sys.executable, "-c", SANDBOXED_PROGRAM], capture_output=True, text=True, timeout=60)
    assert done.stdout in ("sandboxed", "limited"), done.stderr


def workers() -> set[int]:
    """Return the ids of this process's document workers."""
    return {pid for pid in children(os.getpid()) if b"documents.worker" in Path(f"/proc/{pid}/cmdline").read_bytes()}


def children(pid: int) -> list[int]:
    return [int(each) for each in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
