"""Downloads follow no address but https, and end when they are too long."""

import io
from email.message import Message
from pathlib import Path
from typing import Any
from urllib import request
from urllib.error import URLError
from urllib.response import addinfourl

import pytest

from isthmus.datasets import load
from isthmus.errors import DatasetNotFoundError
from isthmus.paper.datasets import loading as web


class Answer(request.BaseHandler):
    """Answers in the place of a server."""

    handler_order = 0

    def __init__(self, code: int, content: bytes = b"", location: str = "") -> None:
        self.code, self.content, self.headers = code, content, Message()
        if location:
            self.headers["Location"] = location

    def https_open(self, asked: request.Request) -> Any:
        answer = addinfourl(io.BytesIO(self.content), self.headers, asked.full_url, self.code)
        answer.msg = "words"  # type: ignore[attr-defined]
        return answer


@pytest.mark.parametrize("address", ["http://127.0.0.1:9/x", "ftp://127.0.0.1/x"])
def test_other_addresses_and_redirects_to_them_are_refused(address: str) -> None:
    redirecting = request.build_opener(web.HttpsOnly, Answer(302, location=address))
    for opener, asked in (
        (request.build_opener(web.HttpsOnly), address),
        (request.build_opener(web.HttpsOnly), "file:///etc"),
        (redirecting, "https://example.org/x"),
    ):
        with pytest.raises(URLError, match="https"):
            opener.open(asked)


def test_a_download_has_a_largest_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(web, "LARGEST", 100)
    for amount in (None, -1, 7):
        small, large = (
            request.build_opener(web.HttpsOnly, Answer(200, bytes(size))).open(
                "https://example.org/x"
            )
            for size in (100, 101)
        )
        assert b"".join(iter(lambda: small.read(amount), b"")) == bytes(100)  # noqa: B023
        with pytest.raises(URLError, match="larger than 100 bytes"):
            b"".join(iter(lambda: large.read(amount), b""))  # noqa: B023


def test_downloads_leave_the_opener_of_this_process_alone(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    mine = request.build_opener(Answer(200, b"mine"))
    monkeypatch.setattr(request, "_opener", mine)
    monkeypatch.setattr(request, "install_opener", None)  # an error if it is called here
    monkeypatch.setenv("https_proxy", "http://127.0.0.1:9")  # nothing answers there
    with pytest.raises(DatasetNotFoundError):
        load("ecoli", tmp_path)
    assert request.urlopen("https://example.org/x").read() == b"mine"
